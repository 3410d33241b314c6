package cli

import (
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// forms are the media types with a file extension. Binary data comes as base64.
var forms = []struct {
	media, ext string
	binary     bool
}{
	{"image/png", "png", true}, {"image/jpeg", "jpg", true}, {"image/gif", "gif", true}, {"application/pdf", "pdf", true},
	{"image/svg+xml", "svg", false}, {"text/html", "html", false}, {"text/markdown", "md", false}, {"text/latex", "tex", false},
	{"application/json", "json", false}, {"e2b/data", "data.json", false}, {"e2b/chart", "chart.json", false},
}

// saveRich writes the rich forms of a result and of displayed values into a directory. Without a
// directory it prints which forms there are.
func (a *app) saveRich(ev cell.Evaluated, dir string, w io.Writer) error {
	bundles := slices.Clone(ev.Display)
	if ev.Value != nil && len(ev.Value.MIME) > 0 {
		bundles = append(bundles, ev.Value.MIME)
	}
	if dir != "" && len(bundles) > 0 {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("cannot save results: %w", err)
		}
	}
	unsaved := 0
	for i, b := range bundles {
		rich := false
		for _, f := range forms {
			text, ok := b[f.media]
			if !ok {
				continue
			}
			rich = true
			if dir == "" {
				continue
			}
			data := []byte(text)
			if f.binary {
				var err error
				if data, err = base64.StdEncoding.DecodeString(strings.Join(strings.Fields(text), "")); err != nil {
					return &api.Error{Kind: "internal", Message: fmt.Sprintf("cannot save a result of type %s: %v", f.media, err)}
				}
			}
			name := filepath.Join(dir, fmt.Sprintf("%d-%d.%s", ev.N, i+1, f.ext))
			if err := writeNew(name, data); err != nil {
				return fmt.Errorf("cannot save results: %w", err)
			}
			fmt.Fprintf(w, "saved %s, %s\n", name, size(int64(len(data))))
		}
		if plain, ok := b["text/plain"]; ok && i < len(ev.Display) {
			fmt.Fprintln(w, a.text(plain, a.isTTY))
		}
		if rich && dir == "" {
			unsaved++
			fmt.Fprintf(w, "pando: %s\n", kinds(b))
		}
	}
	if unsaved > 0 {
		fmt.Fprintln(w, "pando: --save DIR writes such results into files")
	}
	return nil
}

// writeNew creates a file and does not follow a link at its path.
func writeNew(name string, data []byte) error {
	if err := os.Remove(name); err != nil && !os.IsNotExist(err) {
		return err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// kinds names the rich forms of a bundle.
func kinds(b cell.Bundle) string {
	var names []string
	for _, f := range forms {
		if text, ok := b[f.media]; ok {
			n := len(text)
			if f.binary {
				n = n / 4 * 3
			}
			names = append(names, f.media+", "+size(int64(n)))
		}
	}
	return strings.Join(names, "; ")
}
