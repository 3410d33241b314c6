package receipt

import (
	"bytes"
	"encoding/base64"
	"errors"
	"slices"
	"strconv"

	"github.com/pando-dev/pando/internal/cell"
)

// An envelope is DSSE (https://github.com/secure-systems-lab/dsse) in one
// fixed form, without white space and with one signature:
//
//	{"payload":"…","payloadType":"…","signatures":[{"keyid":"…","sig":"…"}]}
//
// The signature is over the payload and its type. The form matters only to the ledger: its
// leaves are envelopes byte for byte.
type envelope struct {
	payload []byte
	signed  []byte // what the signature is over; payload is its end
	keyid   string
	sig     []byte
}

const (
	envelope1 = `{"payload":"`
	envelope2 = `","payloadType":"` + PayloadType + `","signatures":[{"keyid":"`
	envelope3 = `","sig":"`
	envelope4 = `"}]}`
)

// appendPAE begins DSSE's pre-authentication encoding of a payload, which is
// what is signed; the payload itself follows.
func appendPAE(b []byte, payloadSize int) []byte {
	b = append(b, "DSSEv1 "...)
	b = strconv.AppendInt(b, int64(len(PayloadType)), 10)
	b = append(append(b, ' '), PayloadType...)
	b = strconv.AppendInt(append(b, ' '), int64(payloadSize), 10)
	return append(b, ' ')
}

// seal signs a payload and returns the envelope.
func seal(s Signer, payload []byte) ([]byte, error) {
	sig, err := s.Sign(append(appendPAE(nil, len(payload)), payload...))
	if err != nil {
		return nil, cell.Errorf(cell.Unavailable, "receipt.Append", "", "cannot sign a receipt: %w", err)
	}
	b := make([]byte, 0, 400+base64.StdEncoding.EncodedLen(len(payload)))
	b = append(b, envelope1...)
	b = base64.StdEncoding.AppendEncode(b, payload)
	b = append(append(append(b, envelope2...), s.Public().ID()...), envelope3...)
	b = base64.StdEncoding.AppendEncode(b, sig)
	return append(b, envelope4...), nil
}

var errEnvelope = errors.New("it is not an envelope of pando")

// parseEnvelope reads what seal wrote and nothing else.
func parseEnvelope(b []byte) (envelope, error) { return parseEnvelopeInto(b, nil) }

// parseEnvelopeInto is parseEnvelope with room for what is signed.
func parseEnvelopeInto(b, room []byte) (e envelope, err error) {
	rest, ok1 := bytes.CutPrefix(b, []byte(envelope1))
	rest, ok2 := bytes.CutSuffix(rest, []byte(envelope4))
	payload, rest, ok3 := bytes.Cut(rest, []byte(envelope2))
	keyid, sig, ok4 := bytes.Cut(rest, []byte(envelope3))
	if !ok1 || !ok2 || !ok3 || !ok4 || bytes.ContainsAny(keyid, "\"\\") {
		return e, errEnvelope
	}
	e.keyid = string(keyid)
	size := len(payload)/4*3 - len(payload) + len(bytes.TrimRight(payload, "="))
	if size < 0 {
		return e, errEnvelope
	}
	e.signed = appendPAE(slices.Grow(room[:0], size+64), size)
	head := len(e.signed)
	if e.signed, err = decode64(e.signed, payload); err != nil {
		return e, err
	}
	e.payload = e.signed[head:]
	e.sig, err = decode64(nil, sig)
	return e, err
}

// decode64 appends what text stands for. It accepts one encoding of each
// value: padding bits are zero, and there are no line ends in it, which the
// decoder would pass over.
func decode64(b, text []byte) ([]byte, error) {
	before := len(b)
	b, err := base64.StdEncoding.Strict().AppendDecode(b, text)
	if err != nil || base64.StdEncoding.EncodedLen(len(b)-before) != len(text) {
		return nil, errEnvelope
	}
	return b, nil
}

// signedBy reports whether key made e's signature.
func (e envelope) signedBy(key PublicKey) bool { return key.Verify(e.signed, e.sig) }
