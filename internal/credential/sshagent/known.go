package sshagent

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/pando-dev/pando/internal/cell"
)

// Address writes a host as known_hosts does.
func Address(host string, port uint16) string {
	return knownhosts.Normalize(net.JoinHostPort(host, strconv.Itoa(int(port))))
}

// Known returns the keys that prove a host, from files as ssh keeps them
// (known_hosts). Those that are not there are passed over. A host without any
// key can't be lent a signature: that is an error that says what to do.
func Known(host string, port uint16, files ...string) (cell.KnownHost, error) {
	const opName = "sshagent.Known"
	k := cell.KnownHost{Host: host, Port: port}
	var have []string
	for _, f := range files {
		if _, err := os.Stat(f); err == nil {
			have = append(have, f)
		}
	}
	at := Address(host, port)
	none := cell.Errorf(cell.NotFound, opName, fmt.Sprintf("log in once yourself (ssh -p %d %s), so that its key is in ~/.ssh/known_hosts", port, host),
		"cannot lend a key for %s: its host key is not known", at)
	if len(have) == 0 {
		return k, none
	}
	check, err := knownhosts.New(have...)
	if err != nil {
		return k, cell.Errorf(cell.Invalid, opName, "mend the file, as ssh-keygen -F "+host+" would want it", "cannot read the known hosts: %w", err)
	}
	// A key that no host has is refused with the list of those that are wanted.
	pub, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return k, err
	}
	stranger, err := ssh.NewPublicKey(pub)
	if err != nil {
		return k, err
	}
	addr := net.JoinHostPort(host, strconv.Itoa(int(port)))
	refused, ok := errors.AsType[*knownhosts.KeyError](check(addr, &net.TCPAddr{}, stranger))
	if !ok {
		return k, none
	}
	for _, w := range refused.Want {
		if check(addr, &net.TCPAddr{}, w.Key) == nil { // not revoked
			k.Keys = append(k.Keys, w.Key.Type()+" "+base64.StdEncoding.EncodeToString(w.Key.Marshal()))
		}
	}
	if len(k.Keys) == 0 {
		return k, none
	}
	return k, nil
}
