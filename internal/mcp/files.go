package mcp

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pando-dev/pando/api"
)

// largest bounds a file that an agent reads or writes, in bytes.
const largest = 8 << 20

// walked bounds the bytes read for a directory list.
const walked = 256 << 20

type readFileIn struct {
	Cell   string `json:"cell" jsonschema:"name or id of the cell"`
	Path   string `json:"path" jsonschema:"absolute, or relative to the workspace"`
	Offset int    `json:"offset,omitempty" jsonschema:"bytes to leave out at the beginning"`
	Limit  int    `json:"limit,omitempty" jsonschema:"bytes in the answer, at most 262144; default 24576"`
}

// fileView is a part of a file.
type fileView struct {
	Path   string `json:"path"`
	Bytes  int64  `json:"bytes"`  // of the whole file
	Offset int    `json:"offset"` // offset of the part
	Next   int    `json:"next,omitempty"`
	Text   string `json:"text,omitempty"`
	Base64 string `json:"base64,omitempty"` // instead of text, for bytes that are not UTF-8
}

func (s *Server) readFile(ctx context.Context, _ *call, in readFileIn) (answer, error) {
	if err := needed("cell", in.Cell); err != nil {
		return answer{}, err
	}
	size, part, err := s.filePart(ctx, in.Cell, in.Path, in.Offset, limitOf(in.Limit))
	if err != nil {
		return answer{}, err
	}
	v := fileView{Path: in.Path, Bytes: size, Offset: in.Offset}
	v.say(part, size)
	return answer{text: v.words("read_file"), data: v}, nil
}

// say puts a part into v: as text, or otherwise in base64. It returns the number of bytes used.
func (v *fileView) say(b []byte, size int64) []byte {
	if int64(v.Offset+len(b)) < size {
		for i := 1; i < utf8.UTFMax && i < len(b); i++ { // characters are not cut
			if utf8.RuneStart(b[len(b)-i]) {
				if !utf8.FullRune(b[len(b)-i:]) {
					b = b[:len(b)-i]
				}
				break
			}
		}
		v.Next = v.Offset + len(b)
	}
	if utf8.Valid(b) && !bytes.ContainsRune(b, 0) {
		v.Text = string(b)
	} else {
		v.Base64 = base64.StdEncoding.EncodeToString(b)
	}
	return b
}

// words formats a part as text.
func (v fileView) words(tool string) string {
	text := v.Text
	if v.Base64 != "" {
		text = "(base64) " + v.Base64
	}
	if v.Next > 0 {
		text += fmt.Sprintf("\n… there is more: %s with offset %d", tool, v.Next)
	}
	return text
}

// filePart reads a part of a file in a cell.
func (s *Server) filePart(ctx context.Context, sel, name string, offset, limit int) (size int64, part []byte, err error) {
	if name == "" || offset < 0 {
		return 0, nil, invalid("give path, and an offset that is not negative", "cannot read that file")
	}
	body, err := s.cfg.Client.ReadFiles(ctx, sel, name)
	if err != nil {
		return 0, nil, err
	}
	defer body.Close()
	t := tar.NewReader(body)
	h, err := t.Next()
	switch {
	case err != nil:
		return 0, nil, broken(err)
	case h.Typeflag == tar.TypeDir:
		return 0, nil, invalid("use list_files", fmt.Sprintf("cannot read %s: it is a directory", name))
	case h.Typeflag == tar.TypeSymlink:
		return 0, nil, invalid("read what it leads to", fmt.Sprintf("cannot read %s: it is a symlink to %s", name, valid([]byte(h.Linkname))))
	}
	if _, err := io.CopyN(io.Discard, t, min(int64(offset), h.Size)); err != nil {
		return 0, nil, broken(err)
	}
	part, err = io.ReadAll(io.LimitReader(t, int64(limit)))
	if err != nil {
		return 0, nil, broken(err)
	}
	return h.Size, part, nil
}

func broken(err error) error {
	return &api.Error{Kind: "unavailable", Message: "cannot read the cell's archive: " + err.Error(), Hint: "try again"}
}

type writeFileIn struct {
	Cell       string  `json:"cell" jsonschema:"name or id of the cell"`
	Path       string  `json:"path" jsonschema:"absolute, or relative to the workspace; directories above it are made"`
	Text       *string `json:"text,omitempty" jsonschema:"the text to write; an empty one makes an empty file"`
	Base64     string  `json:"base64,omitempty" jsonschema:"instead of text: bytes, in base64"`
	Executable bool    `json:"executable,omitempty"`
}

func (s *Server) writeFile(ctx context.Context, _ *call, in writeFileIn) (answer, error) {
	if err := needed("cell", in.Cell); err != nil {
		return answer{}, err
	}
	dir, name := path.Split(in.Path)
	if name == "" || name == "." || name == ".." {
		return answer{}, invalid("give the path of a file", fmt.Sprintf("cannot write %q", in.Path))
	}
	var content []byte
	switch {
	case in.Text != nil:
		content = []byte(*in.Text)
	case in.Base64 == "":
		return answer{}, invalid("give text, or base64; an empty text makes an empty file", fmt.Sprintf("cannot write %s: nothing to write is given", in.Path))
	}
	if in.Base64 != "" {
		if len(content) > 0 {
			return answer{}, invalid("leave one of them out", "cannot write both text and base64")
		}
		var err error
		if content, err = base64.StdEncoding.DecodeString(in.Base64); err != nil {
			return answer{}, invalid("encode it again, in the standard alphabet with padding", "cannot read the base64: "+err.Error())
		}
	}
	if len(content) > largest {
		return answer{}, invalid("write it in the cell, by exec", fmt.Sprintf("cannot write %d bytes at once, only %d", len(content), largest))
	}
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	mode := int64(0o644)
	if in.Executable {
		mode = 0o755
	}
	err := t.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(content)), Format: tar.FormatPAX})
	if err == nil {
		_, err = t.Write(content)
	}
	if err = errors.Join(err, t.Close()); err != nil {
		return answer{}, fmt.Errorf("cannot write %s: %w", in.Path, err)
	}
	if dir == "" {
		dir = "."
	}
	if err := s.cfg.Client.WriteFiles(ctx, in.Cell, dir, &b); err != nil {
		return answer{}, err
	}
	return answer{text: fmt.Sprintf("wrote %d bytes to %s", len(content), in.Path), data: map[string]any{"path": in.Path, "bytes": len(content)}}, nil
}

type listFilesIn struct {
	Cell  string `json:"cell" jsonschema:"name or id of the cell"`
	Path  string `json:"path,omitempty" jsonschema:"a directory, absolute or relative to the workspace; default the workspace"`
	Depth int    `json:"depth,omitempty" jsonschema:"how many levels of directories; default 1"`
}

// entry is one file of a list.
type entry struct {
	Path  string `json:"path"` // relative to the directory
	Type  string `json:"type"` // file, directory, symlink
	Bytes int64  `json:"bytes,omitempty"`
	To    string `json:"to,omitempty"` // of a symlink
}

// entries bounds the files of a list.
const entries = 2000

// namesMost bounds the names of a list, in bytes.
const namesMost = 128 << 10

func (s *Server) listFiles(ctx context.Context, _ *call, in listFilesIn) (answer, error) {
	if err := needed("cell", in.Cell); err != nil {
		return answer{}, err
	}
	at := in.Path
	if at == "" {
		at = "."
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	body, err := s.cfg.Client.ReadFiles(ctx, in.Cell, at)
	if err != nil {
		return answer{}, err
	}
	defer body.Close()
	list, cut, err := entriesOf(body, max(in.Depth, 1))
	if err != nil {
		return answer{}, err
	}
	slices.SortFunc(list, func(a, b entry) int { return strings.Compare(a.Path, b.Path) })
	var text []string
	for _, e := range list {
		switch e.Type {
		case "directory":
			text = append(text, e.Path+"/")
		case "symlink":
			text = append(text, e.Path+" -> "+e.To)
		default:
			text = append(text, fmt.Sprintf("%s  %d", e.Path, e.Bytes))
		}
	}
	if cut != "" {
		text = append(text, "… "+cut)
	}
	if len(list) == 0 {
		text = append(text, "nothing is in it")
	}
	return answer{text: lines(text...), data: map[string]any{"path": at, "files": list, "cut": cut}}, nil
}

// entriesOf lists the files of an archive, down to a depth; cut describes what is missing.
func entriesOf(r io.Reader, depth int) (list []entry, cut string, err error) {
	in := &counted{r: r}
	t := tar.NewReader(in)
	list = []entry{}
	names := 0
	for top := true; ; top = false {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return list, "", nil
		}
		if err != nil {
			return nil, "", broken(err)
		}
		name := strings.Trim(path.Clean("/"+h.Name), "/")
		_, below, _ := strings.Cut(name, "/") // the directory's own name comes first
		if top && h.Typeflag != tar.TypeDir {
			below = name
		}
		if below == "" || strings.Count(below, "/") >= depth {
			if in.n > walked {
				return list, "the list is incomplete: reading all would take too long; list a directory further down, or exec find", nil
			}
			continue
		}
		if names += len(below) + len(h.Linkname); names > namesMost && len(list) > 0 {
			return list, fmt.Sprintf("there is more: %d are shown, and names are long; list a directory further down, or exec find", len(list)), nil
		}
		if len(list) == entries {
			return list, fmt.Sprintf("there is more: %d are shown; list a directory further down, or exec find", entries), nil
		}
		e := entry{Path: valid([]byte(below)), Type: "file", Bytes: h.Size}
		switch h.Typeflag {
		case tar.TypeDir:
			e.Type, e.Bytes = "directory", 0
		case tar.TypeSymlink:
			e.Type, e.To = "symlink", valid([]byte(h.Linkname))
		}
		list = append(list, e)
	}
}

// counted counts the bytes read.
type counted struct {
	r io.Reader
	n int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}
