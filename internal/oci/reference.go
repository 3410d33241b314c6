package oci

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/paths"
)

// A Reference says where an image is: in a registry, or in a file or directory
// of this host.
type Reference struct {
	Path       string // of a layout directory or an archive: absolute; "" for a registry
	Registry   string // host, perhaps with a port: "docker.io"
	Repository string // "library/python"
	Tag        string // of a layout: "" for its only image
	Digest     cell.Digest
}

// Parse reads a reference. What begins with "." or "/", or has an archive's
// suffix, is a path, relative to dir; everything else is in a registry, as
// Docker writes it: "python:3.12" is docker.io/library/python:3.12.
func Parse(s, dir string) (Reference, error) {
	if paths.IsImage(s) {
		return parsePath(s, dir)
	}
	const hint = "write it like docker.io/library/python:3.12-slim, or the path of a layout directory or an archive"
	bad := func(why string) (Reference, error) {
		return Reference{}, cell.Errorf(cell.Invalid, "oci.Parse", hint, "%q is no reference to an image: %s", cell.Clip(s), why)
	}
	var r Reference
	rest, digest, named := strings.Cut(s, "@")
	if named {
		d, err := cell.ParseDigest(digest)
		if err != nil || d.IsZero() {
			return bad("after @ comes sha256: and 64 hexadecimal digits")
		}
		r.Digest = d
	}
	if i := strings.LastIndexByte(rest, ':'); i >= 0 && !strings.Contains(rest[i:], "/") {
		rest, r.Tag = rest[:i], rest[i+1:]
		if !tagShaped(r.Tag) {
			return bad("a tag is up to 128 letters, digits, '_', '.', '-'")
		}
	}
	host, path, ok := strings.Cut(rest, "/")
	if ok && (strings.ContainsAny(host, ".:") || host == "localhost") {
		r.Registry, r.Repository = host, path
	} else {
		r.Registry, r.Repository = "docker.io", rest
	}
	if r.Registry == "index.docker.io" {
		r.Registry = "docker.io"
	}
	if r.Registry == "docker.io" && !strings.Contains(r.Repository, "/") {
		r.Repository = "library/" + r.Repository
	}
	if !hostShaped(r.Registry) {
		return bad("its registry is no host")
	}
	if !repositoryShaped(r.Repository) {
		return bad("a repository's name is small letters and digits, with '.', '_', '-' between them")
	}
	if r.Tag == "" && r.Digest.IsZero() {
		r.Tag = "latest"
	}
	return r, nil
}

func parsePath(s, dir string) (Reference, error) {
	var r Reference
	abs := func(p string) string {
		if filepath.IsAbs(p) {
			return filepath.Clean(p)
		}
		return filepath.Join(dir, p)
	}
	if strings.ContainsRune(s, 0) || !filepath.IsAbs(abs(s)) {
		return r, cell.Errorf(cell.Invalid, "oci.Parse", "give an absolute path", "cannot use %q: it is relative, and the current directory is not known", cell.Clip(s))
	}
	r.Path = abs(s)
	if _, err := os.Lstat(r.Path); err == nil {
		return r, nil
	}
	// What comes after the last colon is a tag, if the rest is there.
	if i := strings.LastIndexByte(s, ':'); i > 0 && tagShaped(s[i+1:]) {
		if _, err := os.Lstat(abs(s[:i])); err == nil {
			r.Path, r.Tag = abs(s[:i]), s[i+1:]
			return r, nil
		}
	}
	return r, cell.Errorf(cell.NotFound, "oci.Parse", "name a layout directory, or an archive that `docker save` has made", "cannot find the image %s", r.Path)
}

// String writes the reference so that Parse reads the same.
func (r Reference) String() string {
	if r.Path != "" {
		if r.Tag != "" {
			return r.Path + ":" + r.Tag
		}
		return r.Path
	}
	s := r.Registry + "/" + r.Repository
	if r.Tag != "" {
		s += ":" + r.Tag
	}
	if !r.Digest.IsZero() {
		s += "@" + r.Digest.String()
	}
	return s
}

// name is what a registry is asked for.
func (r Reference) name() string {
	if !r.Digest.IsZero() {
		return r.Digest.String()
	}
	return r.Tag
}

// OnLoopback reports whether an image is in a registry of this host.
func (r Reference) OnLoopback() bool { return r.Path == "" && loopback(r.Registry) }

// loopback reports whether a registry is on this host: it may be spoken to
// without TLS.
func loopback(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

func tagShaped(s string) bool {
	return s != "" && len(s) <= 128 && s[0] != '.' && s[0] != '-' && strings.Trim(s, letters+capitals+digits+"_.-") == ""
}

const (
	letters  = "abcdefghijklmnopqrstuvwxyz"
	capitals = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digits   = "0123456789"
)

func repositoryShaped(s string) bool {
	if len(s) > 255 {
		return false
	}
	for _, part := range strings.Split(s, "/") {
		if part == "" || strings.Trim(part, letters+digits+"._-") != "" || strings.ContainsAny(part[:1]+part[len(part)-1:], "._-") || strings.Contains(part, "..") {
			return false
		}
	}
	return true
}

func hostShaped(s string) bool {
	host, port := s, ""
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.HasSuffix(s, "]") {
		host, port = s[:i], s[i+1:]
		if port == "" || len(port) > 5 || strings.Trim(port, digits) != "" {
			return false
		}
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		a, err := netip.ParseAddr(strings.TrimSuffix(inner, "]"))
		return err == nil && a.Is6() && a.Zone() == ""
	}
	for _, label := range strings.Split(host, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, letters+capitals+digits+"-") != "" || label[0] == '-' {
			return false
		}
	}
	return len(host) <= 253
}

func itoa(n int) string { return strconv.Itoa(n) }
