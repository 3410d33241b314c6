package gateway

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour // images may be as old
	leafLife      = 23 * time.Hour
	leafBefore    = time.Hour
	leafSpare     = 2 * time.Hour // a leaf is not used in its last hours
	maxLeaves     = 1024
)

// NewAuthority makes the certificate authority of a lineage of cells: a key of its own, for
// signing certificates of hosts alone.
func NewAuthority(name string) (cell.Authority, error) {
	fail := func(err error) (cell.Authority, error) {
		return cell.Authority{}, cell.Errorf(cell.Internal, "gateway.NewAuthority", "", "cannot make a certificate authority: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fail(err)
	}
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: newSerial(), Subject: pkix.Name{CommonName: commonName("pando cell " + name), Organization: []string{"pando"}},
		NotBefore: now.Add(-24 * time.Hour), NotAfter: now.Add(authorityLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return fail(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fail(err)
	}
	return cell.Authority{
		Cert: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		Key:  string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})),
	}, nil
}

func newSerial() *big.Int {
	n, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
	return n.Add(n, big.NewInt(1))
}

// commonName cuts a name to the limit of X.520.
func commonName(s string) string { return s[:min(len(s), 64)] }

// signer makes certificates for the hosts of opened connections.
type signer struct {
	ca  *x509.Certificate
	key any

	leafKey *ecdsa.PrivateKey // of all leaves: it stays in the keeper

	mu     sync.Mutex
	leaves map[string]*tls.Certificate
}

func newSigner(a cell.Authority) (*signer, error) {
	pair, err := tls.X509KeyPair([]byte(a.Cert), []byte(a.Key))
	if err != nil {
		return nil, fmt.Errorf("the authority can't be read: %w", err)
	}
	s := &signer{ca: pair.Leaf, key: pair.PrivateKey, leaves: map[string]*tls.Certificate{}}
	if !s.ca.IsCA {
		return nil, errors.New("its certificate is not that of an authority")
	}
	s.leafKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	return s, err
}

// leaf returns a certificate for a host or an address.
func (s *signer) leaf(host string) (*tls.Certificate, error) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.leaves[host]; c != nil && now.Before(c.Leaf.NotAfter.Add(-leafSpare)) {
		return c, nil
	}
	t := &x509.Certificate{
		SerialNumber: newSerial(), Subject: pkix.Name{CommonName: commonName(host)},
		NotBefore: now.Add(-leafBefore), NotAfter: now.Add(leafLife - leafBefore),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	if a, err := netip.ParseAddr(host); err == nil {
		t.IPAddresses = []net.IP{a.AsSlice()}
	} else {
		t.DNSNames = []string{host}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, s.ca, s.leafKey.Public(), s.key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	if len(s.leaves) >= maxLeaves {
		clear(s.leaves)
	}
	c := &tls.Certificate{Certificate: [][]byte{der, s.ca.Raw}, PrivateKey: s.leafKey, Leaf: leaf}
	s.leaves[host] = c
	return c, nil
}
