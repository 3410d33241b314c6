package sshagent

import (
	"encoding/binary"
	"errors"
	"io"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

// The messages of the agent's protocol that are answered (RFC 9987, until then
// draft-ietf-sshm-ssh-agent). Every other one is refused.
const (
	msgFailure    = 5
	msgSuccess    = 6
	msgList       = 11
	msgKeys       = 12
	msgSign       = 13
	msgSignature  = 14
	msgExtension  = 27
	msgNoSuchWish = 28 // SSH_AGENT_EXTENSION_FAILURE
)

// maxMessage bounds what a cell sends at once, as OpenSSH's agent does.
const maxMessage = 256 << 10

// talk answers messages until the connection ends or one of them has no
// meaning.
func (s *session) talk(c io.ReadWriter) error {
	var head [4]byte
	for {
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return err
		}
		n := binary.BigEndian.Uint32(head[:])
		if n == 0 || n > maxMessage {
			return errors.New("a message of the wrong length")
		}
		msg := make([]byte, n)
		if _, err := io.ReadFull(c, msg); err != nil {
			return err
		}
		out := s.answer(msg[0], msg[1:])
		out = append(binary.BigEndian.AppendUint32(nil, uint32(len(out))), out...)
		if _, err := c.Write(out); err != nil {
			return err
		}
	}
}

func (s *session) answer(kind byte, body []byte) []byte {
	switch kind {
	case msgList:
		keys, err := s.list()
		if err != nil {
			return []byte{msgFailure}
		}
		out := binary.BigEndian.AppendUint32([]byte{msgKeys}, uint32(len(keys)))
		for _, k := range keys {
			out = append(out, ssh.Marshal(struct {
				Blob    []byte
				Comment string
			}{k.Blob, k.Comment})...)
		}
		return out
	case msgSign:
		r := reader{b: body}
		blob, data := r.text(), r.text()
		if r.bad || len(r.b) != 4 {
			return []byte{msgFailure}
		}
		key, err := ssh.ParsePublicKey(blob)
		if err != nil {
			return []byte{msgFailure}
		}
		sig, err := s.sign(key, data, agent.SignatureFlags(binary.BigEndian.Uint32(r.b)))
		if err != nil {
			return []byte{msgFailure}
		}
		return append([]byte{msgSignature}, ssh.Marshal(struct{ Blob []byte }{ssh.Marshal(sig)})...)
	case msgExtension:
		r := reader{b: body}
		if name := r.text(); r.bad || string(name) != sessionBind {
			return []byte{msgFailure}
		}
		if !s.bind(r.b) {
			return []byte{msgNoSuchWish}
		}
		return []byte{msgSuccess}
	}
	return []byte{msgFailure}
}
