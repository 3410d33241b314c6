package engine

import (
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// homesOf returns the home directories of the users who work in a source: the
// one that pando runs as, and the source's owner.
func (e *Engine) homesOf(source string) []string {
	homes := []string{e.cfg.User.Home}
	st, err := os.Stat(source)
	if err != nil {
		return homes
	}
	if s, ok := st.Sys().(*syscall.Stat_t); ok {
		if u, err := user.LookupId(strconv.Itoa(int(s.Uid))); err == nil && filepath.IsAbs(u.HomeDir) && !slices.Contains(homes, u.HomeDir) {
			homes = append(homes, u.HomeDir)
		}
	}
	return homes
}

// gitConfigs returns the configuration files that the environment names for
// git beside those in the usual places.
func gitConfigs() (list []string) {
	for _, f := range []string{os.Getenv("GIT_CONFIG_GLOBAL"), os.Getenv("GIT_CONFIG_SYSTEM"), filepath.Join(os.Getenv("XDG_CONFIG_HOME"), "git/config")} {
		if filepath.IsAbs(f) {
			list = append(list, f)
		}
	}
	return list
}
