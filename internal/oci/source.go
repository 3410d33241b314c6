package oci

import (
	"context"
	"io"

	"github.com/pando-dev/pando/internal/cell"
)

// A source has images.
type source interface {
	// find returns what a reference means for this host. What it returns was
	// verified against the reference's digest, if that has one.
	find(ctx context.Context, r Reference) (*found, error)
	// open opens a blob. What it gives was not verified.
	open(ctx context.Context, d descriptor) (io.ReadCloser, error)
	// remote reports whether opening costs a transfer.
	remote() bool
	close() error
}

// found is an image as its manifest describes it.
type found struct {
	digest cell.Digest // the manifest's; of an archive without one, the config's
	config descriptor
	layers []descriptor
}

// resolve follows an index to the manifest for this host. get returns the bytes
// of a manifest and the media type that came with it; they have the digest that
// was asked for.
func resolve(b []byte, told string, lim Limits, get func(d descriptor) ([]byte, string, error)) (*found, error) {
	for depth := 0; ; depth++ {
		m, err := readManifest(b, told)
		if err != nil {
			return nil, err
		}
		if !m.isIndex() {
			if err := m.check(lim); err != nil {
				return nil, err
			}
			return &found{cell.Sum(b), *m.Config, m.Layers}, nil
		}
		if depth == 3 {
			return nil, corrupt("cannot use this image: indexes lead to indexes")
		}
		d, err := m.choose()
		if err != nil {
			return nil, err
		}
		if d.Digest.IsZero() || d.Size < 0 || d.Size > maxManifest {
			return nil, corrupt("cannot use this image: its index names a manifest of %d bytes", d.Size)
		}
		if b, told, err = get(d); err != nil {
			return nil, err
		}
		if err := verified(b, d); err != nil {
			return nil, err
		}
		if told == "" {
			told = d.MediaType
		}
	}
}

// readBlob reads a small blob whole, and verifies it.
func readBlob(ctx context.Context, s source, d descriptor, bound int64) ([]byte, error) {
	if d.Size < 0 || d.Size > bound {
		return nil, corrupt("cannot use %s: it has %d bytes", d.short(), d.Size)
	}
	r, err := s.open(ctx, d)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, d.Size+1))
	if err != nil {
		return nil, err
	}
	return b, verified(b, d)
}
