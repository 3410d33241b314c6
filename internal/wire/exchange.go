package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// The bounds of a recording, in bytes.
const (
	MaxBody = 8 << 20  // of one body
	MaxRun  = 64 << 20 // of all bodies and headers
	// maxText bounds the text of a recording: base64 and names add less than as much again.
	maxText = 2*MaxRun + (1 << 20)
	// overhead is what an exchange counts beside its bodies and headers. It bounds their number.
	overhead = 512
)

// Exchange is one request with its answer.
type Exchange struct {
	N       int64   `json:"n"` // the order of the requests' beginnings, from 1
	Conn    string  `json:"conn,omitempty"`
	Scheme  string  `json:"scheme"` // "http", "https"
	Host    string  `json:"host"`   // with its port
	Method  string  `json:"method"`
	Path    string  `json:"path"` // as it was sent, with its query
	Request Message `json:"request"`
	Status  int     `json:"status"`
	Answer  Message `json:"answer"`
}

// Message is a request or an answer.
type Message struct {
	Header  http.Header `json:"header,omitempty"`
	Body    []byte      `json:"body,omitempty"`
	Trailer http.Header `json:"trailer,omitempty"`
	Cut     bool        `json:"cut,omitempty"`     // the rest of the body was beyond the bounds
	Partial bool        `json:"partial,omitempty"` // it ended before its end
}

// Name is a name that was looked up.
type Name struct {
	Host string `json:"host"`
	Code int    `json:"code"`           // the response code of DNS: 0, 2 (the lookup failed), 3 (there is no such name)
	None bool   `json:"none,omitempty"` // it has no address
}

// size is what a name counts.
func (n *Name) size() int64 { return int64(len(n.Host)) + overhead/8 }

// line is one line of a recording: an exchange or, with Name, a name.
type line struct {
	*Exchange
	Name *Name `json:"name,omitempty"`
}

// Want is the request, in words.
func (e *Exchange) Want() string { return e.Method + " " + e.Scheme + "://" + e.Host + e.Path }

// key names the stream of requests in which an exchange has its position.
func (e *Exchange) key() string { return e.Want() }

// size is what an exchange counts, without its bodies.
func (e *Exchange) size() int64 {
	return overhead + int64(len(e.Path)) + headerSize(e.Request.Header) + headerSize(e.Answer.Header) + headerSize(e.Answer.Trailer)
}

func headerSize(h http.Header) (n int64) {
	for name, values := range h {
		for _, v := range values {
			n += int64(len(name) + len(v))
		}
	}
	return n
}

var errMalformed = errors.New("the recording is malformed")

// Read reads a recording, in clear.
func Read(r io.Reader) (list []*Exchange, names []Name, err error) {
	d := json.NewDecoder(&io.LimitedReader{R: r, N: maxText})
	var bytes int64
	for n := 1; ; n++ {
		l := line{Exchange: new(Exchange)}
		switch err := d.Decode(&l); {
		case err == io.EOF:
			return list, names, nil
		case err != nil:
			return nil, nil, fmt.Errorf("%w: line %d: %w", errMalformed, n, err)
		}
		e := l.Exchange
		switch {
		case l.Name != nil:
			bytes += l.Name.size()
			names = append(names, *l.Name)
		case e == nil || e.Method == "" || e.Host == "" || e.N <= 0 || e.Status < 200 || e.Status > 999 || len(e.Request.Body) > MaxBody || len(e.Answer.Body) > MaxBody:
			return nil, nil, fmt.Errorf("%w: line %d is no exchange", errMalformed, n)
		default:
			bytes += e.size() + int64(len(e.Request.Body)+len(e.Answer.Body))
			list = append(list, e)
		}
		if bytes > MaxRun {
			return nil, nil, fmt.Errorf("%w: it has more than %d MiB", errMalformed, MaxRun>>20)
		}
	}
}
