package e2b

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
)

// The part of the Connect protocol (https://connectrpc.com/docs/protocol) that
// E2B's clients speak: JSON or Protocol Buffers, over HTTP/1.1 or 2, as they are or
// by gzip. Unary calls are plain requests; a stream is envelopes, each a byte of
// flags, four of length, big endian, and a message. Its end is JSON always:
//
//	→ 00 request
//	← 00 message … 02 {} or {"error": {"code", "message"}}
//
// Why this is not connectrpc.com/connect stands in docs/design/0006-doors.md.

const (
	typeJSON        = "application/json"
	typeProto       = "application/proto"
	typeStream      = "application/connect+json"
	typeProtoStream = "application/connect+proto"

	flagCompressed = 1
	flagEnd        = 2
)

// maxMessage bounds one unpacked message, in bytes.
const maxMessage = 16 << 20

// codec is an encoding of messages.
type codec struct {
	unary, stream string // media types
	marshal       func(v any) ([]byte, error)
	// unmarshal lists the ignored fields of the message.
	unmarshal func(b []byte, to any) (ignored []string, err error)
}

var (
	codecJSON = codec{typeJSON, typeStream, json.Marshal, func(b []byte, to any) ([]string, error) {
		if len(b) == 0 {
			return nil, nil
		}
		if !bound.IsText(b) {
			return nil, notText("the message")
		}
		if err := json.Unmarshal(b, to); err != nil {
			return nil, err
		}
		if err := bound.Unique(b, "the message", reflect.TypeOf(to)); err != nil {
			return nil, err
		}
		return unknown("", b, reflect.TypeOf(to).Elem()), nil
	}}
	codecProto = codec{typeProto, typeProtoStream, func(v any) ([]byte, error) {
		return appendMessage(nil, reflect.ValueOf(v)), nil
	}, func(b []byte, to any) ([]string, error) {
		return readMessage("", b, reflect.ValueOf(to).Elem())
	}}
)

// codecOf returns the encoding of a request's messages.
func codecOf(r *http.Request, streams bool) (c *codec, ok bool) {
	t := mediaType(r)
	for _, c := range []*codec{&codecJSON, &codecProto} {
		if !streams && t == c.unary || streams && t == c.stream {
			return c, true
		}
	}
	return nil, false
}

// rpcError is an error in the Connect protocol's format.
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

// rpcStatuses are the HTTP statuses of failed unary calls.
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

// mediaType returns the media type of a request.
func mediaType(r *http.Request) string {
	t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return t
}

// unary makes a handler of a call with one message each way.
func unary[In request](do func(r *http.Request, in *In) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, ok := codecOf(r, false)
		if !ok {
			wrongType(w)
			return
		}
		var in In
		b, err := readUnary(w, r)
		if err == nil {
			var ignored []string
			ignored, err = c.unmarshal(b, &in)
			ignore(w, ignored...)
		}
		if err != nil {
			rpcErrorOf(unreadable("e2b.rpc", err)).answer(w)
			return
		}
		var out any
		if err = fields.MayName(r.Context(), &in); err == nil {
			out, err = do(r, &in)
		}
		if err == nil {
			b, err = c.marshal(out)
		}
		if err != nil {
			rpcErrorOf(err).answer(w)
			return
		}
		w.Header().Set("Content-Type", c.unary)
		w.Write(b)
	}
}

// errEncoding is the error for an unknown compression.
var errEncoding = errors.New("only gzip is unpacked")

// unreadable is the error of an unreadable request.
func unreadable(op string, err error) error {
	if errors.Is(err, errEncoding) {
		return cell.Errorf(cell.Unsupported, op, "send it uncompressed, or with gzip", "cannot read the request: %w", err)
	}
	return cell.Errorf(cell.Invalid, op, "", "cannot read the request: %w", err)
}

func readUnary(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxMessage))
	if err != nil {
		return nil, err
	}
	switch r.Header.Get("Content-Encoding") {
	case "", "identity":
		return b, nil
	case "gzip":
		return unpack(b)
	}
	w.Header().Set("Accept-Encoding", "gzip")
	return nil, errEncoding
}

// unpack unpacks a message, up to the size limit.
func unpack(b []byte) ([]byte, error) {
	if len(b) == 0 {
		return nil, nil
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	if b, err = io.ReadAll(io.LimitReader(z, maxMessage+1)); err == nil && len(b) > maxMessage {
		err = errLarge
	}
	return b, err
}

// wrongType rejects an unknown encoding.
func wrongType(w http.ResponseWriter) {
	w.Header().Set("Accept-Post", strings.Join([]string{typeJSON, typeProto, typeStream, typeProtoStream}, ", "))
	refuse(w, http.StatusUnsupportedMediaType, "cannot read the request: send JSON or Protocol Buffers by the Connect protocol ("+typeJSON+", "+typeProto+"; streams "+typeStream+", "+typeProtoStream+")")
}

// stream makes a handler of a call that is answered with a stream.
func stream[In request](do func(r *http.Request, in *In, s *sender) error) http.HandlerFunc {
	return streams(func(r *http.Request, next func(to any) error, s *sender) error {
		var in In
		if err := next(&in); err != nil {
			if errors.Is(err, io.EOF) {
				err = unreadable("e2b.stream", io.ErrUnexpectedEOF)
			}
			return err
		}
		return do(r, &in, s)
	})
}

// streams makes a handler of a call with a stream each way. next reads a message, and returns
// io.EOF after the last.
func streams(do func(r *http.Request, next func(to any) error, s *sender) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, ok := codecOf(r, true)
		if !ok {
			wrongType(w)
			return
		}
		s := &sender{w: w, flush: http.NewResponseController(w), codec: c}
		w.Header().Set("Content-Type", c.stream)
		next := func(to any) error {
			last, b, err := readEnvelope(r.Body, r.Header.Get("Connect-Content-Encoding"))
			if last && err == nil || errors.Is(err, io.EOF) {
				return io.EOF
			}
			var ignored []string
			if err == nil {
				ignored, err = c.unmarshal(b, to)
				ignore(w, ignored...)
			}
			if errors.Is(err, errEncoding) {
				w.Header().Set("Connect-Accept-Encoding", "gzip")
			}
			if err != nil {
				return unreadable("e2b.stream", err)
			}
			return fields.MayName(r.Context(), to)
		}
		s.end(do(r, next, s))
	}
}

var errLarge = errors.New("a message of more than 16 MiB")

// readEnvelope reads one message of a stream; last says that the stream ends with it.
func readEnvelope(r io.Reader, encoding string) (last bool, b []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return false, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > maxMessage {
		return false, nil, errLarge
	}
	// Memory is used for the bytes received, and not for the announced length.
	var got bytes.Buffer
	if _, err = io.CopyN(&got, r, int64(n)); errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	b = got.Bytes()
	switch {
	case err != nil || head[0]&flagCompressed == 0:
	case encoding != "gzip":
		err = errEncoding
	default:
		b, err = unpack(b)
	}
	return head[0]&flagEnd != 0, b, err
}

// sender sends the messages of one stream.
type sender struct {
	flush *http.ResponseController
	codec *codec

	mu sync.Mutex // guards w
	w  http.ResponseWriter
}

func (s *sender) envelope(flags byte, b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	head := append(make([]byte, 0, 5+len(b)), flags)
	head = binary.BigEndian.AppendUint32(head, uint32(len(b)))
	if _, err := s.w.Write(append(head, b...)); err != nil {
		return err
	}
	return s.flush.Flush()
}

func (s *sender) send(v any) error {
	b, err := s.codec.marshal(v)
	if err != nil {
		return err
	}
	return s.envelope(0, b)
}

// end sends the end of the stream.
func (s *sender) end(err error) {
	v := struct {
		Error *rpcError `json:"error,omitempty"`
	}{}
	if err != nil {
		e := rpcErrorOf(err)
		v.Error = &e
	}
	if b, err := json.Marshal(v); err == nil {
		s.envelope(flagEnd, b)
	}
}

// pings is the interval of keep-alives on an idle stream, as requested by the caller.
func pings(r *http.Request) time.Duration {
	n, err := strconv.Atoi(r.Header.Get("Keepalive-Ping-Interval"))
	if err != nil || n < 1 || n > 3600 {
		n = 90
	}
	return time.Duration(n) * time.Second
}
