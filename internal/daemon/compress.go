package daemon

import (
	"bytes"
	"compress/gzip"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// Answers to callers over TCP are compressed on request (Accept-Encoding, RFC 9110, 12.5.3):
// JSON and other text that its route writes as a whole. Never compressed are:
//   - answers on the unix socket, where bytes cost less than compressing them;
//   - answers that are flushed (lines, server-sent events): each line must arrive at once;
//   - archives, files and other bytes, which are often compressed already, and answers of
//     programs in cells;
//   - answers of routes that deal with secrets (see secretive).
const (
	compressMin  = 1 << 10 // bytes; less fits into one packet anyway
	compressMost = 32      // compressors in use; above it answers are sent uncompressed
)

// secretive reports whether a route's answer may contain a secret of pando. The compressed
// length of a secret beside text of an attacker reveals how much of them is equal (BREACH).
func secretive(route Route) bool {
	_, token := route.Out.(api.Token)
	return token || strings.HasPrefix(route.Path, "/v1/credentials") || strings.HasPrefix(route.Path, "/v1/tokens")
}

// compressible reports whether answers of a media type are compressed on a route.
func compressible(route Route, contentType string) bool {
	kind, _, err := mime.ParseMediaType(contentType)
	switch {
	case err != nil, kind == eventStream:
		return false
	case kind == jsonLines: // events requested without follow
		return route.Gives == jsonLines
	}
	return kind == "application/json" || strings.HasSuffix(kind, "+json") || strings.HasPrefix(kind, "text/")
}

// codings are the content codings of answers, in order of preference. Each is also the suffix of
// the ETag of an encoded answer: other bytes need another strong ETag.
var codings = [...]string{"zstd", "gzip"}

// codingOf returns the offered content coding that a request prefers, the first of several equal
// ones; "" for none.
func codingOf(h http.Header, offered ...string) (best string) {
	quality := map[string]float64{}
	for _, line := range h.Values("Accept-Encoding") {
		for part := range strings.SplitSeq(line, ",") {
			name, params, _ := strings.Cut(part, ";")
			q := 1.0
			if v, ok := strings.CutPrefix(strings.ReplaceAll(params, " ", ""), "q="); ok {
				var err error
				if q, err = strconv.ParseFloat(v, 64); err != nil || !(q >= 0 && q <= 1) {
					q = 0
				}
			}
			quality[strings.ToLower(strings.TrimSpace(name))] = q
		}
	}
	most := 0.0
	defer func() {
		if most < quality["identity"] { // the caller prefers no encoding
			best = ""
		}
	}()
	for _, c := range offered {
		q, named := quality[c]
		if !named {
			q = quality["*"]
		}
		if q > most {
			best, most = c, q
		}
	}
	return best
}

// plainTag removes the suffix of a content coding from a tag.
func plainTag(tag string) string {
	for _, c := range codings {
		if t, ok := strings.CutSuffix(tag, "-"+c); ok {
			return t
		}
	}
	return tag
}

// compressor is a gzip.Writer or a zstd.Encoder.
type compressor interface {
	io.WriteCloser
	Reset(io.Writer)
}

// compressors lends a bounded number of compressors.
type compressors struct {
	mu   sync.Mutex // guards the fields below
	lent int
	idle map[string][]compressor // by coding; with the lent ones at most compressMost
}

// take returns a compressor, or nil when too many are in use.
func (c *compressors) take(coding string, to io.Writer) compressor {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lent == compressMost {
		return nil
	}
	c.lent++
	if n := len(c.idle[coding]); n > 0 {
		z := c.idle[coding][n-1]
		c.idle[coding] = c.idle[coding][:n-1]
		z.Reset(to)
		return z
	}
	if coding == "gzip" {
		z, err := gzip.NewWriterLevel(to, gzip.BestSpeed)
		if err != nil { // a bug: the level is valid
			panic(err)
		}
		return z
	}
	z, err := zstd.NewWriter(to, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(128<<10), zstd.WithLowerEncoderMem(true))
	if err != nil { // a bug: the options are valid
		panic(err)
	}
	return z
}

// idleCompressors is the number of idle compressors of each coding.
const idleCompressors = 4

// put returns a compressor; nil for one that is not used again.
func (c *compressors) put(coding string, z compressor) {
	if z != nil {
		z.Reset(io.Discard) // it must not keep the connection
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lent--
	if z != nil && len(c.idle[coding]) < idleCompressors {
		if c.idle == nil {
			c.idle = map[string][]compressor{}
		}
		c.idle[coding] = append(c.idle[coding], z)
	}
}

// compressed is an answer that is compressed if its headers and its length allow it. It holds
// back writes until that is decided.
type compressed struct {
	http.ResponseWriter
	r      *http.Request
	route  Route
	pool   *compressors
	coding string // requested by the caller; "" for none

	status int // 0 until WriteHeader
	held   bytes.Buffer
	begun  bool // the header was sent
	z      compressor
}

// compress returns a writer for an answer, a function to finish a complete answer, and a
// function that releases its compressor, which the caller must always call.
func (d *Daemon) compress(w http.ResponseWriter, r *http.Request, route Route) (_ http.ResponseWriter, end, free func()) {
	if v := requestRecordOf(r); v == nil || v.from == "socket" || route.Method == anyMethod || secretive(route) {
		return w, func() {}, func() {}
	}
	switch route.Gives {
	case WebSocket, tarball, octets, eventStream:
		return w, func() {}, func() {}
	}
	c := &compressed{ResponseWriter: w, r: r, route: route, pool: &d.compressors, coding: codingOf(r.Header, codings[:]...)}
	return c, c.end, c.free
}

// Unwrap is for http.ResponseController.
func (c *compressed) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (c *compressed) WriteHeader(status int) {
	if status < 200 {
		c.ResponseWriter.WriteHeader(status)
		return
	}
	if c.status == 0 {
		c.status = status
	}
}

// Write implements http.ResponseWriter.
func (c *compressed) Write(b []byte) (int, error) {
	c.WriteHeader(http.StatusOK)
	switch {
	case c.z != nil:
		return c.z.Write(b)
	case c.begun:
		return c.ResponseWriter.Write(b)
	case !c.able():
		if err := c.begin(false); err != nil {
			return 0, err
		}
		return c.ResponseWriter.Write(b)
	case c.held.Len()+len(b) < compressMin:
		return c.held.Write(b)
	}
	if err := c.begin(true); err != nil {
		return 0, err
	}
	return c.Write(b)
}

// FlushError is for http.ResponseController. A flush before the first compressed byte turns
// compression off; a later one sends what was written.
func (c *compressed) FlushError() error {
	if err := c.begin(false); err != nil {
		return err
	}
	if z, ok := c.z.(interface{ Flush() error }); ok {
		if err := z.Flush(); err != nil {
			return err
		}
	}
	return http.NewResponseController(c.ResponseWriter).Flush()
}

// able reports whether the headers and the status allow another coding.
func (c *compressed) able() bool {
	h := c.Header()
	switch {
	case c.coding == "", c.r.Method == http.MethodHead, c.status == http.StatusNoContent, c.status == http.StatusNotModified, c.status == http.StatusPartialContent,
		h.Get("Content-Encoding") != "", h.Get("Content-Range") != "", h.Get("Content-Length") != "":
		return false
	}
	return compressible(c.route, h.Get("Content-Type"))
}

// begin sends the header and the bytes held back. Afterwards the coding is fixed.
func (c *compressed) begin(compress bool) error {
	if c.begun {
		return nil
	}
	c.begun = true
	c.WriteHeader(http.StatusOK)
	h := c.Header()
	if compressible(c.route, h.Get("Content-Type")) {
		h.Add("Vary", "Accept-Encoding")
	}
	if compress {
		c.z = c.pool.take(c.coding, c.ResponseWriter)
	}
	if c.z != nil {
		h.Set("Content-Encoding", c.coding)
		if tag, ok := strings.CutSuffix(h.Get("ETag"), `"`); ok {
			h.Set("ETag", tag+"-"+c.coding+`"`)
		}
	}
	c.ResponseWriter.WriteHeader(c.status)
	var err error
	if c.held.Len() > 0 {
		if c.z != nil {
			_, err = c.z.Write(c.held.Bytes())
		} else {
			_, err = c.ResponseWriter.Write(c.held.Bytes())
		}
		c.held = bytes.Buffer{}
	}
	return err
}

// end writes the rest of an answer.
func (c *compressed) end() {
	if c.status == 0 && !c.begun {
		return // no answer was written: net/http writes one
	}
	c.begin(false)
	if c.z != nil && c.z.Close() == nil {
		c.pool.put(c.coding, c.z)
		c.z = nil
	}
}

// free releases the compressor of an unfinished answer.
func (c *compressed) free() {
	if c.z != nil {
		c.pool.put(c.coding, nil)
		c.z = nil
	}
}

// refuseEncoded refuses a body with a content coding, since request bodies are never unpacked, and
// a body that is a part of what it is to replace.
func refuseEncoded(w http.ResponseWriter, r *http.Request, route Route) error {
	if route.Method == anyMethod {
		return nil // it is for a program in a cell
	}
	for _, coding := range r.Header.Values("Content-Encoding") {
		if c := strings.TrimSpace(coding); c != "" && !strings.EqualFold(c, "identity") {
			w.Header().Set("Accept-Encoding", "identity") // RFC 9110, 15.5.16
			return cell.Errorf(cell.WrongType, "daemon", "send it without Content-Encoding", "cannot read a body that is encoded as %s", strconv.Quote(cell.Clip(c)))
		}
	}
	if r.Header.Get("Content-Range") != "" { // RFC 9110, 14.5: it would be taken for the whole
		return cell.Errorf(cell.Invalid, "daemon", "send all of it, without Content-Range", "cannot write a part of something")
	}
	return nil
}
