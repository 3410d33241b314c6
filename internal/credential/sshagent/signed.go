package sshagent

import (
	"bytes"
	"crypto/sha512"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
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

// SignForGit has an agent sign a commit or tag with one of its keys, and returns the signature in the form that git
// keeps it in (OpenSSH's PROTOCOL.sshsig, sections 1 to 3).
func SignForGit(a agent.ExtendedAgent, key ssh.PublicKey, message []byte) (string, error) {
	const hash = "sha512"
	sum := sha512.Sum512(message)
	wrapped := slices.Concat(signedMagic, texts([]byte(gitNamespace), nil, []byte(hash), sum[:]))
	var flags agent.SignatureFlags
	if key.Type() == ssh.KeyAlgoRSA { // SHA-1 is not taken
		flags = agent.SignatureFlagRsaSha512
	}
	sig, err := a.SignWithFlags(key, wrapped, flags)
	if err != nil {
		return "", err
	}
	blob := binary.BigEndian.AppendUint32(slices.Clone(signedMagic), 1) // the version
	blob = append(blob, texts(key.Marshal(), []byte(gitNamespace), nil, []byte(hash), ssh.Marshal(sig))...)
	var out strings.Builder
	out.WriteString("-----BEGIN SSH SIGNATURE-----\n")
	for line := range slices.Chunk([]byte(base64.StdEncoding.EncodeToString(blob)), 70) {
		out.Write(line)
		out.WriteByte('\n')
	}
	out.WriteString("-----END SSH SIGNATURE-----\n")
	return out.String(), nil
}

// texts are strings of SSH (RFC 4251, section 5), one after the other.
func texts(list ...[]byte) (out []byte) {
	for _, b := range list {
		out = append(binary.BigEndian.AppendUint32(out, uint32(len(b))), b...)
	}
	return out
}
