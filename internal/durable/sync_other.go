//go:build !linux

package durable

import "os"

const directoryOnly = 0

const asItIs = 0

func syncData(f *os.File) error { return f.Sync() }
