package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// modulesIn lists the modules in a directory in load order, which is the order of their names.
func modulesIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir) // sorted
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // the kernel has everything built in
	}
	if err != nil {
		return nil, err
	}
	var list []string
	for _, e := range entries {
		if e.Type().IsRegular() && strings.Contains(e.Name(), ".ko") {
			list = append(list, filepath.Join(dir, e.Name()))
		}
	}
	return list, nil
}

// moduleFlags returns the flags of finit_module for a module.
func moduleFlags(name string) int {
	if strings.HasSuffix(name, ".ko") {
		return 0
	}
	return unix.MODULE_INIT_COMPRESSED_FILE
}

// loadModules loads the modules in a directory. It continues after a failure, and returns all
// errors: the kernel may have the function built in.
func loadModules(dir string) error {
	list, err := modulesIn(dir)
	if err != nil {
		return err
	}
	for _, name := range list {
		if lerr := loadModule(name); lerr != nil {
			err = errors.Join(err, fmt.Errorf("cannot load the kernel's module %s: %w", filepath.Base(name), lerr))
		}
	}
	return err
}

func loadModule(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", moduleFlags(name)); err != nil && err != unix.EEXIST {
		return err
	}
	return nil
}
