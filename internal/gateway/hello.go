package gateway

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// maxHello bounds a ClientHello; post-quantum keys make them about 2 KiB.
const maxHello = 64 << 10

// hello is the relevant part of a ClientHello.
type hello struct {
	name  string // server_name, lower case; "" if absent
	ech   bool   // encrypted_client_hello: there may be another name inside
	proto []string
}

var (
	errShort  = errors.New("more bytes are needed")
	errNotTLS = errors.New("this is no TLS")
)

// TLS numbers (RFC 8446, RFC 6066, RFC 7301, RFC 9849).
const (
	recordHandshake    = 22
	handshakeHello     = 1
	extServerName      = 0
	extALPN            = 16
	extECH             = 0xfe0d
	alertAccessDenied  = 49
	alertUnrecognized  = 112
	maxRecord          = 1<<14 + 256
	recordHeaderLength = 5
)

// parseHello parses the ClientHello at the start of b, over any number of records. It returns
// errShort while b is incomplete, and errNotTLS for other data.
func parseHello(b []byte) (*hello, error) {
	var msg []byte
	for {
		if len(b) > 0 && b[0] != recordHandshake || len(b) > 1 && b[1] != 3 {
			return nil, errNotTLS
		}
		if len(b) < recordHeaderLength {
			return nil, errShort
		}
		n := int(binary.BigEndian.Uint16(b[3:]))
		if n == 0 || n > maxRecord {
			return nil, errNotTLS
		}
		got := b[recordHeaderLength:]
		whole := len(got) >= n
		got = got[:min(len(got), n)]
		msg = append(msg, got...)
		if len(msg) > 0 && msg[0] != handshakeHello {
			return nil, errNotTLS
		}
		if len(msg) >= 4 {
			size := int(msg[1])<<16 | int(msg[2])<<8 | int(msg[3])
			if size > maxHello {
				return nil, fmt.Errorf("the ClientHello has %d bytes", size)
			}
			if len(msg) >= 4+size {
				return parseHelloBody(msg[4 : 4+size])
			}
		}
		if !whole {
			return nil, errShort
		}
		b = b[recordHeaderLength+n:]
	}
}

// reader reads fields; after a failure it fails always.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if r.bad || n > len(r.b) {
		r.bad = true
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) uint(n int) (v int) {
	for _, b := range r.take(n) {
		v = v<<8 | int(b)
	}
	return v
}

// field reads a field with a length of n bytes in front.
func (r *reader) field(n int) []byte { return r.take(r.uint(n)) }

func parseHelloBody(b []byte) (*hello, error) {
	r := reader{b: b}
	r.take(2 + 32) // version, random
	r.field(1)     // session
	r.field(2)     // cipher suites
	r.field(1)     // compression
	h := &hello{}
	if r.bad {
		return nil, errors.New("the ClientHello is malformed")
	}
	if len(r.b) == 0 {
		return h, nil // TLS 1.2 without extensions
	}
	ext := reader{b: r.field(2)}
	if r.bad || len(r.b) > 0 {
		return nil, errors.New("the ClientHello is malformed")
	}
	seen := map[int]bool{}
	for len(ext.b) > 0 {
		kind := ext.uint(2)
		body := reader{b: ext.field(2)}
		if ext.bad || seen[kind] || len(seen) > 512 {
			return nil, errors.New("the ClientHello is malformed")
		}
		seen[kind] = true
		switch kind {
		case extServerName:
			list := reader{b: body.field(2)}
			for len(list.b) > 0 && !list.bad {
				typ, name := list.uint(1), list.field(2)
				if list.bad || typ != 0 || h.name != "" || len(name) == 0 {
					return nil, errors.New("the ClientHello's server name is malformed")
				}
				h.name = hostOf(string(name))
			}
			if body.bad || list.bad || len(body.b) > 0 {
				return nil, errors.New("the ClientHello's server name is malformed")
			}
		case extALPN:
			list := reader{b: body.field(2)}
			for len(list.b) > 0 && !list.bad {
				h.proto = append(h.proto, string(list.field(1)))
			}
		case extECH:
			h.ech = true
		}
	}
	return h, nil
}

// alert is a fatal TLS alert, as a record.
func alert(code byte) []byte { return []byte{21, 3, 3, 0, 2, 2, code} }
