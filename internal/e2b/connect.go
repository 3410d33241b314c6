package e2b

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// The part of the Connect protocol (https://connectrpc.com/docs/protocol) that
// E2B's clients speak: JSON, over HTTP/1.1 or 2. Unary calls are plain requests; a
// stream is envelopes, each a byte of flags, four of length, big endian, and JSON:
//
//	→ 00 request
//	← 00 message … 02 {} or {"error": {"code", "message"}}

const (
	typeJSON   = "application/json"
	typeStream = "application/connect+json"

	flagCompressed = 1
	flagEnd        = 2
)

// maxMessage bounds one message, in bytes.
const maxMessage = 16 << 20

// rpcError is an error in the Connect protocol's form.
type rpcError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func rpcErrorOf(err error) rpcError {
	e := rpcError{Code: "internal", Message: sentence(err)}
	if s, ok := statuses[cell.KindOf(err)]; ok {
		e.Code = s.word
	}
	if errors.Is(err, errUser) {
		e.Code = "unauthenticated"
	}
	return e
}

// rpcStatuses are the HTTP statuses of unary calls that fail.
var rpcStatuses = map[string]int{
	"invalid_argument": 400, "not_found": 404, "already_exists": 409, "failed_precondition": 400, "permission_denied": 403,
	"unimplemented": 501, "unavailable": 503, "deadline_exceeded": 504, "aborted": 409, "unauthenticated": 401, "resource_exhausted": 429,
}

func (e rpcError) answer(w http.ResponseWriter) {
	status, ok := rpcStatuses[e.Code]
	if !ok {
		status = http.StatusInternalServerError
	}
	answer(w, status, e)
}

// mediaType is the media type of a request.
func mediaType(r *http.Request) string {
	t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return t
}

// unary makes a handler of a call with one message each way.
func unary[In any](do func(r *http.Request, in *In) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if mediaType(r) != typeJSON {
			wrongType(w)
			return
		}
		var in In
		b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxMessage))
		if err == nil && len(b) > 0 {
			err = json.Unmarshal(b, &in)
		}
		if err != nil {
			rpcError{"invalid_argument", "cannot read the request: " + err.Error()}.answer(w)
			return
		}
		out, err := do(r, &in)
		if err != nil {
			rpcErrorOf(err).answer(w)
			return
		}
		answer(w, http.StatusOK, out)
	}
}

// wrongType refuses what is not JSON: the protocol's binary form is not spoken.
func wrongType(w http.ResponseWriter) {
	w.Header().Set("Accept-Post", typeJSON+", "+typeStream)
	refuse(w, http.StatusUnsupportedMediaType, "cannot read the request: send JSON ("+typeJSON+", streams "+typeStream+")")
}

// stream makes a handler of a call that is answered with a stream.
func stream[In any](do func(r *http.Request, in *In, s *sender) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if mediaType(r) != typeStream {
			wrongType(w)
			return
		}
		s := &sender{w: w, flush: http.NewResponseController(w)}
		w.Header().Set("Content-Type", typeStream)
		var in In
		_, b, err := readEnvelope(r.Body)
		if err == nil {
			err = json.Unmarshal(b, &in)
		}
		if err != nil {
			s.end(cell.Errorf(cell.Invalid, "e2b.stream", "", "cannot read the request: %w", err))
			return
		}
		s.end(do(r, &in, s))
	}
}

// readEnvelope reads one message of a stream; last: the stream ends with it.
func readEnvelope(r io.Reader) (last bool, b []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return false, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > maxMessage {
		return false, nil, errors.New("a message of more than 16 MiB")
	}
	if head[0]&flagCompressed != 0 {
		return false, nil, errors.New("a compressed message")
	}
	b = make([]byte, n)
	_, err = io.ReadFull(r, b)
	return head[0]&flagEnd != 0, b, err
}

// sender sends the messages of one stream.
type sender struct {
	flush *http.ResponseController

	mu sync.Mutex // guards w
	w  http.ResponseWriter
}

func (s *sender) envelope(flags byte, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	head := append(make([]byte, 0, 5+len(b)), flags)
	head = binary.BigEndian.AppendUint32(head, uint32(len(b)))
	if _, err := s.w.Write(append(head, b...)); err != nil {
		return err
	}
	return s.flush.Flush()
}

func (s *sender) send(v any) error { return s.envelope(0, v) }

// end is the last of a stream.
func (s *sender) end(err error) {
	v := struct {
		Error *rpcError `json:"error,omitempty"`
	}{}
	if err != nil {
		e := rpcErrorOf(err)
		v.Error = &e
	}
	s.envelope(flagEnd, v)
}

// pings is how often a stream on which nothing comes says that it is there, as
// the caller asks for it.
func pings(r *http.Request) time.Duration {
	n, err := strconv.Atoi(r.Header.Get("Keepalive-Ping-Interval"))
	if err != nil || n < 1 || n > 3600 {
		n = 90
	}
	return time.Duration(n) * time.Second
}
