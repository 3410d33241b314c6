package sshagent

import (
	"encoding/binary"
	"errors"
)

// auth is what a client signs to log in with a key (RFC 4252, section 7), and
// with OpenSSH's publickey-hostbound-v00@openssh.com.
type auth struct {
	session []byte
	user    string
	key     []byte
	host    []byte // hostbound: the host's key; else nil
}

var errAuth = errors.New("it has another form")

const userauthRequest = 50

func parseAuth(b []byte) (a auth, err error) {
	r := reader{b: b}
	a.session = r.text()
	kind := r.byte()
	a.user = string(r.text())
	service, method := string(r.text()), string(r.text())
	signed := r.byte()
	r.text() // the algorithm: the host checks it, and it is part of what is signed
	a.key = r.text()
	if method == "publickey-hostbound-v00@openssh.com" {
		if a.host = r.text(); len(a.host) == 0 {
			return a, errAuth
		}
	} else if method != "publickey" {
		return a, errAuth
	}
	if r.bad || len(r.b) > 0 || len(a.session) == 0 || kind != userauthRequest || service != "ssh-connection" || signed != 1 {
		return a, errAuth
	}
	return a, nil
}

// reader reads the fields of a message of SSH (RFC 4251, section 5).
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.bad = true
		return 0
	}
	c := r.b[0]
	r.b = r.b[1:]
	return c
}

func (r *reader) text() []byte {
	if len(r.b) < 4 {
		r.bad, r.b = true, nil
		return nil
	}
	n := binary.BigEndian.Uint32(r.b)
	if uint64(n) > uint64(len(r.b)-4) {
		r.bad, r.b = true, nil
		return nil
	}
	t := r.b[4 : 4+n]
	r.b = r.b[4+n:]
	return t
}
