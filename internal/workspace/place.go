package workspace

import (
	"os"
	"path/filepath"

	"github.com/pando-dev/pando/internal/linux"
)

// RemoveTree removes a directory and all in it, however deep, also what its
// owner may not enter. It is no error if there is none.
func RemoveTree(dir string) error { return linux.RemoveTree(dir) }

// PlaceLayer makes layer, a path among a provider's layers, lie in the
// directory place instead: a symbolic link stands for it.
func PlaceLayer(layer, place string) error {
	real := filepath.Join(place, filepath.Base(layer))
	if err := os.Mkdir(real, 0o700); err != nil {
		return err
	}
	return os.Symlink(real, layer)
}

// IsPlaced reports whether a layer lies in a place of its own.
func IsPlaced(layer string) bool {
	st, err := os.Lstat(layer)
	return err == nil && st.Mode()&os.ModeSymlink != 0
}

// RemoveLayer removes a layer, wherever it lies.
func RemoveLayer(layer string) error {
	if real, err := os.Readlink(layer); err == nil {
		if err := RemoveTree(real); err != nil {
			return err
		}
	}
	return RemoveTree(layer)
}
