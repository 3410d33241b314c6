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
func Read(r io.Reader) ([]*Exchange, error) {
	d := json.NewDecoder(&io.LimitedReader{R: r, N: maxText})
	var list []*Exchange
	var bytes int64
	for {
		e := new(Exchange)
		switch err := d.Decode(e); {
		case err == io.EOF:
			return list, nil
		case err != nil:
			return nil, fmt.Errorf("%w: exchange %d: %w", errMalformed, len(list)+1, err)
		}
		if e.Method == "" || e.Host == "" || e.N <= 0 || e.Status < 200 || e.Status > 999 || len(e.Request.Body) > MaxBody || len(e.Answer.Body) > MaxBody {
			return nil, fmt.Errorf("%w: exchange %d is none", errMalformed, len(list)+1)
		}
		if bytes += e.size() + int64(len(e.Request.Body)+len(e.Answer.Body)); bytes > MaxRun {
			return nil, fmt.Errorf("%w: it has more than %d MiB", errMalformed, MaxRun>>20)
		}
		list = append(list, e)
	}
}
