package e2b

import (
	"compress/gzip"
	"errors"
	"io"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

func (f *Front) envdRoutes() *http.ServeMux {
	m := http.NewServeMux()
	m.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	m.HandleFunc("GET /files", f.readFile)
	m.HandleFunc("POST /files", f.writeFiles)
	m.HandleFunc("POST /files/compose", f.compose)
	m.HandleFunc("GET /metrics", f.envdMetrics)
	m.HandleFunc("GET /envs", f.envs)
	f.processRoutes(m)
	f.filesystemRoutes(m)
	m.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, http.StatusNotFound, "cannot answer "+cell.Clip(r.URL.Path)+": there is no such call")
	})
	return m
}

// failFile answers with an error about files in E2B's format. The sandbox may have been removed
// meanwhile.
func (f *Front) failFile(w http.ResponseWriter, r *http.Request, p string, err error) {
	id := idIn(r.Context())
	gone := f.lost(id)
	switch {
	case gone != nil:
		f.gone(w, id, gone)
	case errors.Is(err, errUser):
		refuse(w, http.StatusUnauthorized, sentence(err))
	case cell.KindOf(err) == cell.NotFound:
		refuse(w, http.StatusNotFound, "path '"+cell.Clip(p)+"' does not exist")
	case errors.Is(err, unix.ENOSPC):
		refuse(w, http.StatusInsufficientStorage, sentence(err))
	default:
		fail(w, err)
	}
}

// fileParameters are those of /files.
var fileParameters = []string{"path", "username", "signature", "signature_expiration"}

// asked rejects invalid users and paths.
func (f *Front) asked(r *http.Request, path string) error {
	if !utf8.ValidString(path) {
		return notText("the path")
	}
	return f.user(r)
}

// readFile sends a file.
func (f *Front) readFile(w http.ResponseWriter, r *http.Request) {
	known(w, r, fileParameters...)
	p, id := r.URL.Query().Get("path"), idIn(r.Context())
	if err := f.asked(r, p); err != nil {
		f.failFile(w, r, p, err)
		return
	}
	list, err := f.cfg.Engine.Files(r.Context(), id, cell.FileAct{Act: cell.FileStat, Path: inHome(p)}, nil)
	if err != nil {
		f.failFile(w, r, p, err)
		return
	}
	i := list[0]
	if i.Type == cell.TypeDirectory || i.Leads == cell.TypeDirectory {
		refuse(w, http.StatusBadRequest, "path '"+cell.Clip(p)+"' is a directory")
		return
	}
	out := &body{w: w, name: path.Base(i.Path), size: i.Size}
	if i.Size > 0 {
		err = f.cfg.Engine.Manage(r.Context(), id, cell.FileAct{Act: cell.FileRead, Path: i.Path, Size: i.Size}, nil, out)
	}
	switch {
	case err != nil && !out.begun:
		f.failFile(w, r, p, err)
	case err != nil || out.left() > 0 && out.begun: // it was cut short: breaking the connection is the only way to report it
		panic(http.ErrAbortHandler)
	case !out.begun:
		out.begin(0)
	}
}

// body is the body of a file; its header is sent with the first bytes.
type body struct {
	w     http.ResponseWriter
	name  string
	size  int64
	sent  int64
	begun bool
}

func (b *body) left() int64 { return b.size - b.sent }

func (b *body) begin(size int64) {
	b.begun = true
	h := b.w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Length", strconv.FormatInt(size, 10))
	h.Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": b.name}))
	b.w.WriteHeader(http.StatusOK)
}

func (b *body) Write(p []byte) (int, error) {
	if !b.begun {
		b.begin(b.size)
	}
	n, err := b.w.Write(p)
	b.sent += int64(n)
	return n, err
}

// written describes a written file.
type written struct {
	Path string `json:"path"`
	Name string `json:"name"`
	Type string `json:"type"`
}

// writeFiles writes files: a plain body, or parts of a form.
func (f *Front) writeFiles(w http.ResponseWriter, r *http.Request) {
	known(w, r, fileParameters...)
	p := r.URL.Query().Get("path")
	if err := f.asked(r, p); err != nil {
		f.failFile(w, r, p, err)
		return
	}
	for name := range r.Header {
		if strings.HasPrefix(name, "X-Metadata-") {
			ignore(w, name)
		}
	}
	in := io.Reader(r.Body)
	switch enc := r.Header.Get("Content-Encoding"); enc {
	case "", "identity":
	case "gzip":
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			refuse(w, http.StatusBadRequest, "cannot read what is sent: "+err.Error())
			return
		}
		in = z
	default:
		refuse(w, http.StatusUnsupportedMediaType, "cannot read content that is encoded as "+cell.Clip(enc))
		return
	}
	if f.cfg.Upload > 0 {
		in = &bounded{in, f.cfg.Upload, f.cfg.Upload}
	}
	t, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err == nil && t == "multipart/form-data" {
		f.writeForm(w, r, newParts(in, params["boundary"]), p)
		return
	}
	if p == "" {
		refuse(w, http.StatusBadRequest, "cannot write a file: no path given")
		return
	}
	done, err := f.write(r, p, in)
	if err != nil {
		f.failFile(w, r, p, err)
		return
	}
	answer(w, http.StatusOK, []written{done})
}

// bounded reads an unpacked body, up to a limit.
type bounded struct {
	io.Reader
	left, limit int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p[:min(int64(len(p)), b.left+1)])
	if b.left -= int64(n); b.left < 0 {
		return 0, cell.Errorf(cell.TooLarge, "e2b.files", "send less at a time, or start pando serve with a higher --max-archive", "what is sent is longer than %d bytes", b.limit)
	}
	return n, err
}

func (f *Front) write(r *http.Request, p string, in io.Reader) (written, error) {
	list, err := f.cfg.Engine.Files(r.Context(), idIn(r.Context()), cell.FileAct{Act: cell.FileWrite, Path: inHome(p)}, in)
	if err != nil {
		return written{}, err
	}
	return written{Path: list[0].Path, Name: path.Base(list[0].Path), Type: "file"}, nil
}

// writeForm writes the files of a form. The path of each is its file name, except for a single
// one with a path in the query.
func (f *Front) writeForm(w http.ResponseWriter, r *http.Request, form parts, p string) {
	out := []written{}
	for {
		part, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			refuse(w, http.StatusBadRequest, "cannot read the form: "+err.Error())
			return
		}
		if part.FormName() != "file" {
			ignore(w, "part "+strconv.QuoteToASCII(cell.Clip(part.FormName())))
			continue
		}
		to := p
		if to == "" {
			to = rawName(part.Header.Get("Content-Disposition"))
		}
		switch {
		case to == "":
			refuse(w, http.StatusBadRequest, "cannot write a file: no path given")
			return
		case p != "" && len(out) > 0:
			refuse(w, http.StatusBadRequest, "cannot write several files to one path")
			return
		}
		done, err := f.write(r, to, part)
		if err != nil {
			f.failFile(w, r, to, err)
			return
		}
		out = append(out, done)
	}
	if len(out) == 0 {
		refuse(w, http.StatusBadRequest, "cannot write: the form has no file")
		return
	}
	answer(w, http.StatusOK, out)
}

type composeRequest struct {
	Sources     []string `json:"source_paths"`
	Destination string   `json:"destination"`
	Username    string   `json:"username"`
}

// compose concatenates several files into one, and removes them.
func (f *Front) compose(w http.ResponseWriter, r *http.Request) {
	var req composeRequest
	if !decode(w, r, &req) {
		return
	}
	id, e := idIn(r.Context()), f.cfg.Engine
	if err := errors.Join(f.user(r), f.userNamed(req.Username)); err != nil {
		f.failFile(w, r, req.Destination, err)
		return
	}
	if len(req.Sources) == 0 || req.Destination == "" {
		refuse(w, http.StatusBadRequest, "cannot compose: give source_paths and destination")
		return
	}
	pr, pw := io.Pipe()
	go func() {
		var err error
		for _, s := range req.Sources {
			if err == nil {
				err = e.Manage(r.Context(), id, cell.FileAct{Act: cell.FileRead, Path: inHome(s)}, nil, pw)
			}
		}
		pw.CloseWithError(err)
	}()
	done, err := f.write(r, req.Destination, pr)
	pr.CloseWithError(err)
	if err != nil {
		f.failFile(w, r, req.Destination, err)
		return
	}
	for _, s := range req.Sources {
		if _, err := e.Files(r.Context(), id, cell.FileAct{Act: cell.FileRemove, Path: inHome(s)}, nil); err != nil {
			f.failFile(w, r, s, err)
			return
		}
	}
	answer(w, http.StatusOK, done)
}

// envs returns the variables of every command of a sandbox.
func (f *Front) envs(w http.ResponseWriter, r *http.Request) {
	out := map[string]string{}
	for _, kv := range f.cfg.Engine.LeasedEnv(idIn(r.Context())) {
		k, v, _ := strings.Cut(kv, "=")
		out[k] = v
	}
	answer(w, http.StatusOK, out)
}
