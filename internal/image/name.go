package image

import (
	"cmp"
	"path"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// The kinds of images.
const (
	KindHost = "host" // the host's own system directories
	KindDir  = "dir"  // a directory that holds a root file system
	KindOCI  = "oci"  // an OCI image
	// KindDockerfile is an image that is made from a Dockerfile on this host.
	KindDockerfile = "dockerfile"
)

// A Name is what a person writes after --image: "host", "dir:PATH", "oci:REF", "dockerfile:PATH[#STAGE]".
type Name struct {
	Kind  string
	Path  string // of a dir, or a Dockerfile or the directory that holds it: absolute and clean
	Ref   string // of an OCI image, as it was written
	Stage string // of a Dockerfile; "": the last
}

// ParseName reads the name of an image. A relative path is below dir.
func ParseName(s, dir string) (Name, error) {
	const op = "image.ParseName"
	kind, rest, named := strings.Cut(s, ":")
	switch {
	case s == "" || s == KindHost:
		return Name{Kind: KindHost}, nil
	case strings.ContainsRune(s, 0):
	case named && (kind == KindDir || kind == KindDockerfile) && rest != "":
		n := Name{Kind: kind}
		if kind == KindDockerfile {
			if i := strings.LastIndexByte(rest, '#'); i >= 0 && !strings.Contains(rest[i:], "/") {
				rest, n.Stage = rest[:i], rest[i+1:]
			}
			rest = cmp.Or(rest, ".")
		}
		if !path.IsAbs(rest) {
			if !path.IsAbs(dir) {
				return Name{}, cell.Errorf(cell.Invalid, op, "give an absolute path", "cannot use image %s: it is relative, and the current directory is not known", s)
			}
			rest = path.Join(dir, rest)
		}
		n.Path = path.Clean(rest)
		return n, nil
	case named && kind == KindOCI && rest != "":
		return Name{Kind: KindOCI, Ref: rest}, nil
	}
	return Name{}, cell.Errorf(cell.Invalid, op, "write host, dir:PATH, oci:REF or dockerfile:PATH, such as oci:docker.io/library/python:3.12-slim", "cannot use image %q: it has no kind that pando knows", s)
}

// String writes the name so that ParseName reads the same.
func (n Name) String() string {
	switch n.Kind {
	case KindDir:
		return KindDir + ":" + n.Path
	case KindOCI:
		return KindOCI + ":" + n.Ref
	case KindDockerfile:
		if n.Stage != "" {
			return KindDockerfile + ":" + n.Path + "#" + n.Stage
		}
		return KindDockerfile + ":" + n.Path
	}
	return KindHost
}
