package guest

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"io"

	"github.com/pando-dev/pando/internal/cell"
)

// greeting is a message before the first question.
type greeting struct {
	Version int        `json:"version,omitempty"`
	Nonce   []byte     `json:"nonce,omitempty"`
	Token   []byte     `json:"token,omitempty"` // at boot, before any other process has the socket
	Proof   []byte     `json:"proof,omitempty"`
	Error   *wireError `json:"error,omitempty"`
}

const nonceSize = 32

func newNonce() []byte {
	n := make([]byte, nonceSize)
	rand.Read(n)
	return n
}

// proof returns a MAC over two nonces, keyed with the token.
func proof(token []byte, side string, keeper, guest []byte) []byte {
	h := hmac.New(sha256.New, token)
	h.Write([]byte("pando guest 1 " + side + "\n"))
	h.Write(keeper)
	h.Write(guest)
	return h.Sum(nil)
}

func sendGreeting(w io.Writer, g greeting) error {
	b, err := json.Marshal(g)
	if err != nil {
		return err
	}
	_, err = w.Write(appendFrame(nil, frameGreet, 0, b))
	return err
}

func readGreeting(r io.Reader) (g greeting, err error) {
	buf := make([]byte, maxPayload)
	t, _, b, err := readFrame(r, buf)
	if err != nil {
		return g, err
	}
	return asGreeting(t, b)
}

func asGreeting(t frameType, b []byte) (g greeting, err error) {
	if t != frameGreet {
		return g, errProtocol("a frame of type %d for a greeting", t)
	}
	if err := decode(b, &g); err != nil {
		return g, err
	}
	if g.Error != nil {
		return g, g.Error.err()
	}
	return g, nil
}

// errStranger is the only answer to a peer that does not know the token.
var errStranger = cell.Errorf(cell.Denied, "guest", "", "cannot talk to the cell's guest: it belongs to another cell")

// greetGuest does the keeper's side of the greeting.
func greetGuest(rw io.ReadWriter, token []byte, boot bool) error {
	mine := greeting{Version: Version, Nonce: newNonce()}
	if boot {
		mine.Token = token
	}
	if err := sendGreeting(rw, mine); err != nil {
		return err
	}
	theirs, err := readGreeting(rw)
	if err != nil {
		return err
	}
	if theirs.Version > Version || theirs.Version < Version-1 || theirs.Version < 1 {
		return cell.Errorf(cell.Unsupported, "guest.Connect", "use the pando-guest of this pando", "cannot talk to the cell's guest: its protocol is version %d", theirs.Version)
	}
	if len(theirs.Nonce) != nonceSize || !hmac.Equal(theirs.Proof, proof(token, "guest", mine.Nonce, theirs.Nonce)) {
		return errStranger
	}
	if err := sendGreeting(rw, greeting{Proof: proof(token, "keeper", mine.Nonce, theirs.Nonce)}); err != nil {
		return err
	}
	_, err = readGreeting(rw)
	return err
}

// greetKeeper does the guest's side of the greeting, after the keeper's first message. It
// returns the keeper's token.
func greetKeeper(rw io.ReadWriter, theirs greeting, token []byte, ready error) ([]byte, error) {
	refuse := func(err error) ([]byte, error) {
		sendGreeting(rw, greeting{Error: toWire(err)})
		return nil, err
	}
	if len(token) == 0 {
		token = theirs.Token
	}
	switch {
	case theirs.Version < Version-1 || theirs.Version < 1:
		return refuse(cell.Errorf(cell.Unsupported, "guest.Serve", "use the pando-guest of this pando", "cannot talk to a keeper with protocol version %d", theirs.Version))
	case len(token) == 0 || len(theirs.Nonce) != nonceSize:
		return refuse(errStranger)
	case ready != nil:
		return refuse(ready)
	}
	mine := greeting{Version: min(Version, theirs.Version), Nonce: newNonce()}
	mine.Proof = proof(token, "guest", theirs.Nonce, mine.Nonce)
	if err := sendGreeting(rw, mine); err != nil {
		return nil, err
	}
	last, err := readGreeting(rw)
	if err != nil {
		return nil, err
	}
	if !hmac.Equal(last.Proof, proof(token, "keeper", theirs.Nonce, mine.Nonce)) {
		return refuse(errStranger)
	}
	return token, sendGreeting(rw, greeting{})
}
