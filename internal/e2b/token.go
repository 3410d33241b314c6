package e2b

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
)

// The uses of tokens.
const (
	useEnvd    = "envd"
	useTraffic = "traffic"
)

// token is a sandbox's token for a use. It is derived from the key, and not stored.
func (f *Front) token(id cell.ID, use string) string {
	m := hmac.New(sha256.New, f.cfg.Key)
	m.Write([]byte(use + "\x00" + string(id)))
	return "pando_" + use + "_" + hex.EncodeToString(m.Sum(nil))
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// mayEnvd reports whether a request has the sandbox's token, or a signature.
func (f *Front) mayEnvd(r *http.Request, id cell.ID) bool {
	if signed(r) {
		return f.validSignature(r, id)
	}
	return same(r.Header.Get("X-Access-Token"), f.token(id, useEnvd))
}

// mayInterpret reports whether a request to the interpreter has one of the sandbox's tokens:
// clients send the one for traffic with all of them.
func (f *Front) mayInterpret(r *http.Request, id cell.ID) bool {
	return f.mayEnvd(r, id) || same(r.Header.Get("E2B-Traffic-Access-Token"), f.token(id, useTraffic))
}

// mayTraffic reports whether a request to a program's port may pass. Ports of a sandbox are open
// to all callers that reach the daemon, as in E2B; those of other cells need scope run.
func (f *Front) mayTraffic(r *http.Request, c *api.Cell) bool {
	if !ours(c) {
		p, ok := access.From(r.Context())
		return ok && p.Level.Allows(access.Run)
	}
	return c.Labels[labelPrivate] == "" || same(r.Header.Get("E2B-Traffic-Access-Token"), f.token(cell.ID(c.ID), useTraffic))
}

// signed reports whether a request is for a file, with a signature.
func signed(r *http.Request) bool {
	return r.URL.Path == "/files" && strings.HasPrefix(r.URL.RawQuery, "signature=") || r.URL.Path == "/files" && strings.Contains(r.URL.RawQuery, "&signature=")
}

// validSignature reports whether a signature is valid for this sandbox, file and act, and has not
// expired.
func (f *Front) validSignature(r *http.Request, id cell.ID) bool {
	s, ok := signatureOf(r)
	return ok && s.of(f.token(id, useEnvd))
}

// signature is the signature of a request.
type signature struct {
	said         string
	before, then string // the signed text around the sandbox's token
}

// signatureOf parses the signature of a request, unless it has expired.
func signatureOf(r *http.Request) (s signature, ok bool) {
	q := r.URL.Query()
	act := "read"
	switch r.Method {
	case http.MethodPost:
		act = "write"
	case http.MethodGet, http.MethodHead:
	default:
		return s, false
	}
	s = signature{said: strings.TrimRight(q.Get("signature"), "="), before: q.Get("path") + ":" + act + ":" + q.Get("username") + ":"}
	if until := q.Get("signature_expiration"); until != "" {
		at, err := strconv.ParseInt(until, 10, 64)
		if err != nil || time.Now().Unix() > at {
			return s, false
		}
		s.then = ":" + until
	}
	return s, strings.HasPrefix(s.said, "v1_")
}

// of reports whether it was made with a token.
func (s *signature) of(token string) bool {
	sum := sha256.Sum256([]byte(s.before + token + s.then))
	return same(s.said, "v1_"+base64.RawStdEncoding.EncodeToString(sum[:]))
}

// maxSigners bounds the cached signatures.
const maxSigners = 4096

// signer finds the sandbox of a request's signature. The address is the same for all sandboxes,
// and a signature is a digest, so each sandbox is tried, in a microsecond or two, and the result
// is cached. (An address by host, PORT-ID.DOMAIN, names the sandbox.)
func (f *Front) signer(r *http.Request) (cell.ID, bool) {
	s, ok := signatureOf(r)
	if !ok {
		return "", false
	}
	f.mu.Lock()
	id, known := f.signers[s.said]
	f.mu.Unlock()
	if known {
		return id, s.of(f.token(id, useEnvd))
	}
	for _, id := range f.cfg.Engine.Labelled(labelTemplate) {
		if !s.of(f.token(id, useEnvd)) {
			continue
		}
		f.mu.Lock()
		if len(f.signers) >= maxSigners {
			clear(f.signers)
		}
		f.signers[s.said] = id
		f.mu.Unlock()
		return id, true
	}
	return "", false
}
