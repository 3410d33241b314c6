package sshagent

import (
	"bytes"
	"errors"
)

// gitNamespace is the namespace of signatures that git makes (its gpg.format "ssh").
const gitNamespace = "git"

// signedMagic begins what is signed for a file, and no log-in: that begins with the length of a session's id.
var signedMagic = []byte("SSHSIG")

var errSigned = errors.New("it is no signature of a file")

// parseSigned returns the namespace of what ssh-keygen -Y sign has an agent sign (OpenSSH's PROTOCOL.sshsig,
// section 3). The agent gets a digest of the file, not the file.
func parseSigned(b []byte) (namespace string, err error) {
	rest, ok := bytes.CutPrefix(b, signedMagic)
	if !ok {
		return "", errSigned
	}
	r := reader{b: rest}
	namespace = string(r.text())
	r.text() // reserved
	size := map[string]int{"sha256": 32, "sha512": 64}[string(r.text())]
	digest := r.text()
	if r.bad || len(r.b) > 0 || namespace == "" || size == 0 || len(digest) != size {
		return "", errSigned
	}
	return namespace, nil
}
