package e2b

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/pando-dev/pando/internal/bound/boundtest"
)

func packed(t testing.TB, b []byte) []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func enveloped(flags byte, b []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(b))), b...)
}

// What is sent as a stream is read, or refused with its reason; never more is kept
// than was sent, and never more is unpacked than a message may have.
func TestHostileStreams(t *testing.T) {
	bomb := packed(t, slices.Concat([]byte(`{"process":{"cmd":"`), bytes.Repeat([]byte("x"), maxMessage), []byte(`"}}`)))
	if len(bomb) > maxMessage/100 {
		t.Fatalf("%d bytes are no bomb", len(bomb))
	}
	ok := []byte(`{"process":{"cmd":"x"},"hat":1}`)
	for name, x := range map[string]struct {
		body     []byte
		encoding string
		code     string // of the error; "": none
	}{
		"one":                {enveloped(0, ok), "", ""},
		"by gzip":            {enveloped(flagCompressed, packed(t, ok)), "gzip", ""},
		"4 GiB":              {[]byte{0, 0xff, 0xff, 0xff, 0xff, '{', '}'}, "", "invalid_argument"},
		"16 MiB, which end":  {[]byte{0, 1, 0, 0, 0, '{'}, "", "invalid_argument"},
		"half a head":        {[]byte{0, 0, 0}, "", "invalid_argument"},
		"nothing":            {nil, "", "invalid_argument"},
		"only an end":        {enveloped(flagEnd, []byte("{}")), "", "invalid_argument"},
		"a bomb":             {enveloped(flagCompressed, bomb), "gzip", "invalid_argument"},
		"packed, unsaid how": {enveloped(flagCompressed, packed(t, ok)), "", "unimplemented"},
		"packed by br":       {enveloped(flagCompressed, ok), "br", "unimplemented"},
		"not packed":         {enveloped(flagCompressed, ok), "gzip", "invalid_argument"},
		"no JSON":            {enveloped(0, []byte("{")), "", "invalid_argument"},
	} {
		r := httptest.NewRequest("POST", "/", bytes.NewReader(x.body))
		r.Header.Set("Content-Type", typeStream)
		if x.encoding != "" {
			r.Header.Set("Connect-Content-Encoding", x.encoding)
		}
		w := httptest.NewRecorder()
		stream(func(_ *http.Request, in *startRequest, s *sender) error { return s.send(in.Process) })(w, r)
		var got struct{ Error *rpcError }
		body := w.Body.Bytes()
		for { // the last envelope is the end
			last, b, err := readEnvelope(bytes.NewReader(body), "")
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if last {
				if err := json.Unmarshal(b, &got); err != nil {
					t.Fatal(err)
				}
				break
			}
			body = body[5+len(b):]
		}
		if w.Code != 200 || x.code == "" && got.Error != nil || x.code != "" && (got.Error == nil || got.Error.Code != x.code) {
			t.Errorf("%s: %d %+v, want %q", name, w.Code, got.Error, x.code)
		}
		if x.code == "" && w.Header().Get(headerIgnored) != "hat" {
			t.Errorf("%s: ignored is %q", name, w.Header().Get(headerIgnored))
		}
	}
}

func TestHostileCalls(t *testing.T) {
	h := unary(func(_ *http.Request, in *moveRequest) (any, error) { return watcherID{in.Source}, nil })
	bomb := packed(t, appendMessage(nil, reflect.ValueOf(moveRequest{Source: strings.Repeat("x", maxMessage)})))
	proto := appendMessage(nil, reflect.ValueOf(moveRequest{Source: "a"}))
	for name, x := range map[string]struct {
		body         []byte
		kind, packed string
		status       int
		answer       string
	}{
		"JSON":             {[]byte(`{"source":"a"}`), typeJSON, "", 200, `{"watcherId":"a"}`},
		"Protocol Buffers": {proto, typeProto, "", 200, "\x0a\x01a"},
		"by gzip":          {packed(t, proto), typeProto, "gzip", 200, "\x0a\x01a"},
		"a bomb":           {bomb, typeProto, "gzip", 400, ""},
		"too much":         {make([]byte, maxMessage+1), typeJSON, "", 400, ""},
		"another packing":  {proto, typeProto, "br", 501, ""},
		"another type":     {proto, "application/grpc", "", 415, ""},
		"not UTF-8":        {[]byte{0x0a, 1, 0xff}, typeProto, "", 400, ""},
		"JSON, not UTF-8":  {[]byte("{\"source\":\"caf\xe9\"}"), typeJSON, "", 400, ""},
		"in another case":  {[]byte(`{"source":"a","Source":"b"}`), typeJSON, "", 400, ""},
		"a key twice":      {[]byte(`{"source":"a","source":"b"}`), typeJSON, "", 400, ""},
		"half a surrogate": {[]byte(`{"source":"caf\udce9"}`), typeJSON, "", 400, ""},
		"a number for it":  {[]byte{0x08, 1}, typeProto, "", 400, ""},
		"cut short":        {[]byte{0x0a, 5, 'a'}, typeProto, "", 400, ""},
		"a length of 2^63": {append([]byte{0x0a}, protowire.AppendVarint(nil, 1<<63)...), typeProto, "", 400, ""},
	} {
		r := httptest.NewRequest("POST", "/", bytes.NewReader(x.body))
		r.Header.Set("Content-Type", x.kind)
		if x.packed != "" {
			r.Header.Set("Content-Encoding", x.packed)
		}
		w := httptest.NewRecorder()
		h(w, r)
		if w.Code != x.status || x.answer != "" && w.Body.String() != x.answer {
			t.Errorf("%s: %d %q", name, w.Code, w.Body)
		}
	}
}

// The numbers are those of the protocol; the bytes were made by hand from its
// description.
func TestProtocolBuffers(t *testing.T) {
	no := false
	in := startRequest{Process: processConfig{Cmd: "sh", Args: []string{"-c", ""}, Envs: map[string]string{"A": "b"}}, Pty: &ptySize{}, Stdin: &no}
	in.Pty.Size.Cols = 300
	b := appendMessage(nil, reflect.ValueOf(in))
	want := "\x0a\x12" + "\x0a\x02sh" + "\x12\x02-c" + "\x12\x00" + "\x1a\x06\x0a\x01A\x12\x01b" + "\x12\x05\x0a\x03\x08\xac\x02" + "\x20\x00"
	if string(b) != want {
		t.Errorf("%x, want %x", b, want)
	}
	var out startRequest
	ignored, err := readMessage("", append(b, 0x78, 1, 0x78, 2), reflect.ValueOf(&out).Elem()) // and field 15, twice
	if err != nil || !reflect.DeepEqual(in, out) || !slices.Equal(ignored, []string{"15"}) {
		t.Errorf("%+v, %v, %v", out, ignored, err)
	}
	end := appendMessage(nil, reflect.ValueOf(processMessage{event{End: &endEvent{ExitCode: -1, Status: "x"}}}))
	if string(end) != "\x0a\x07\x1a\x05\x08\x01\x1a\x01x" {
		t.Errorf("%x", end)
	}
	file := appendMessage(nil, reflect.ValueOf(entry{Type: "FILE_TYPE_DIRECTORY", Size: 1 << 40, ModifiedTime: time.Unix(1, 2)}))
	if string(file) != "\x10\x02"+"\x20\x80\x80\x80\x80\x80\x20"+"\x4a\x04\x08\x01\x10\x02" {
		t.Errorf("%x", file)
	}
	var sig signalRequest
	if _, err := readMessage("", []byte{0x0a, 2, 0x08, 7, 0x10, 9}, reflect.ValueOf(&sig).Elem()); err != nil || sig.Process.PID != 7 || sig.Signal != "SIGNAL_SIGKILL" {
		t.Errorf("%+v %v", sig, err)
	}
	for name, b := range map[string][]byte{
		"a number of 17 bits":  {0x12, 6, 0x0a, 4, 0x08, 0x80, 0x80, 0x08},
		"a message for a bool": {0x22, 0},
		"a number for text":    {0x18, 1},
	} {
		if _, err := readMessage("", b, reflect.ValueOf(&startRequest{}).Elem()); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// A header of an answer does not grow with what is sent.
func TestIgnoredNamesAreBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"x":[{"y":{}}]`)
	for i := range 5000 {
		b.WriteString(`,"` + strconv.Itoa(i) + strings.Repeat("n", 200) + `":0`)
	}
	b.WriteString("}")
	w := httptest.NewRecorder()
	var req createRequest
	if !decode(w, httptest.NewRequest("POST", "/", strings.NewReader(b.String())), &req) {
		t.Fatal(w.Body)
	}
	if h := w.Header().Get(headerIgnored); len(h) > maxIgnored*100 || h == "" {
		t.Errorf("%d bytes", len(h))
	}
}

func FuzzEnvelope(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 2, '{', '}'}, "")
	f.Add([]byte{2, 0xff, 0xff, 0xff, 0xff}, "")
	f.Add(enveloped(flagCompressed, packed(f, []byte("{}"))), "gzip")
	f.Fuzz(func(t *testing.T, b []byte, encoding string) {
		boundtest.Allocates(t, len(b), func() {
			_, got, err := readEnvelope(bytes.NewReader(b), encoding)
			if err == nil && len(got) > len(b)-5 && encoding != "gzip" || len(got) > maxMessage+1 {
				t.Errorf("%d bytes out of %d", len(got), len(b))
			}
		})
	})
}

// messages are what clients send.
func messages() []any {
	return []any{&startRequest{}, &processRequest{}, &inputRequest{}, &signalRequest{}, &updateRequest{}, &inputMessage{}, &pathRequest{}, &moveRequest{}, &listRequest{}, &watchRequest{}, &watcherID{}}
}

// What is read and written again is the same, in both forms.
func FuzzMessage(f *testing.F) {
	f.Add(0, []byte("\x0a\x12\x0a\x02sh\x12\x02-c\x12\x00\x1a\x06\x0a\x01A\x12\x01b\x12\x05\x0a\x03\x08\xac\x02\x20\x00"))
	f.Add(3, []byte{0x0a, 2, 0x08, 7, 0x10, 9})
	f.Add(0, []byte(`{"process":{"cmd":"a","args":["b"]},"pty":{"size":{"cols":1}}}`))
	f.Fuzz(func(t *testing.T, which int, b []byte) {
		boundtest.Allocates(t, len(b), func() {
			list := messages()
			to := list[uint(which)%uint(len(list))]
			for _, c := range []codec{codecJSON, codecProto} {
				one := reflect.New(reflect.TypeOf(to).Elem()).Interface()
				if _, err := c.unmarshal(b, one); err != nil {
					continue
				}
				out, err := c.marshal(one)
				if err != nil {
					t.Fatal(err)
				}
				two := reflect.New(reflect.TypeOf(to).Elem()).Interface()
				if _, err := c.unmarshal(out, two); err != nil {
					t.Fatalf("%q: %v", out, err)
				}
				if again, _ := c.marshal(two); !bytes.Equal(out, again) {
					t.Errorf("%q and then %q", out, again)
				}
			}
		})
	})
}

func TestStreamsEnd(t *testing.T) {
	body := slices.Concat(enveloped(0, []byte(`{"source":"a"}`)), enveloped(0, []byte(`{"source":"b"}`)), enveloped(flagEnd, []byte("{}")), enveloped(0, []byte(`{"source":"c"}`)))
	r := httptest.NewRequest("POST", "/", bytes.NewReader(body))
	r.Header.Set("Content-Type", typeStream)
	var got []string
	streams(func(_ *http.Request, next func(any) error, _ *sender) error {
		for {
			var m moveRequest
			if err := next(&m); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			got = append(got, m.Source)
		}
	})(httptest.NewRecorder(), r)
	if !slices.Equal(got, []string{"a", "b"}) {
		t.Error(got)
	}
}
