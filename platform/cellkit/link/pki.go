package link

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"example.com/cellmart/platform/cellkit"
)

// GlobalZone is the zone that is no cell: it has an agent, and no token key.
const GlobalZone = "global"

const certLife = 10 * 365 * 24 * time.Hour // a demo CA is thrown away, not renewed

var zoneName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,30}$`)

// RunPKI is the body of `cellmart pki DIR ZONE...`.
func RunPKI(_ context.Context, p cellkit.Process) error {
	if len(p.Args) < 2 {
		return cellkit.Usage{Err: errors.New("pki wants DIR ZONE..., for example: pki .demo/pki c1 c2 global")}
	}
	dir, zones := p.Args[0], p.Args[1:]
	if err := checkZones(zones); err != nil {
		return cellkit.Usage{Err: err}
	}
	if err := WritePKI(dir, zones); err != nil {
		return err
	}
	fmt.Fprintf(p.Stdout, "%s: keys and certificates for %s\n", dir, strings.Join(zones, " "))
	return nil
}

func checkZones(zones []string) error {
	for i, z := range zones {
		if !zoneName.MatchString(z) || z == EdgeName || z == unknownPeer {
			return fmt.Errorf("%q is not a zone's name", z)
		}
		if slices.Contains(zones[:i], z) {
			return fmt.Errorf("zone %s is named twice", z)
		}
	}
	return nil
}

// WritePKI makes what is missing in dir for a demo of these zones, and keeps
// what is there: ca.pem and ca.key; agent.ZONE and edge (.pem and .key);
// control, the key that signs route tables, and for each cell token.CELL
// (.key and .pub, see LoadSigningKey). Keys are readable by the owner only.
func WritePKI(dir string, zones []string) error {
	if err := checkZones(zones); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	a, err := loadAuthority(dir)
	if err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	names := []string{EdgeName}
	signing := []string{"control"}
	for _, z := range zones {
		names = append(names, AgentName(z))
		if z != GlobalZone {
			signing = append(signing, "token."+z)
		}
	}
	for _, name := range names {
		if err := a.issue(dir, name); err != nil {
			return fmt.Errorf("pki: certificate of %s: %w", name, err)
		}
	}
	for _, name := range signing {
		if err := writeSigningKey(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("pki: signing key %s: %w", name, err)
		}
	}
	return nil
}

// authority is the demo CA.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// loadAuthority reads the CA or makes it. The key is written before the
// certificate, so that a certificate always has its key.
func loadAuthority(dir string) (*authority, error) {
	base := filepath.Join(dir, "ca")
	pair, err := tls.LoadX509KeyPair(base+".pem", base+".key")
	if err == nil {
		return &authority{cert: pair.Leaf, key: pair.PrivateKey.(crypto.Signer)}, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	tmpl := template("cellmart demo CA")
	tmpl.IsCA, tmpl.BasicConstraintsValid = true, true
	tmpl.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	cert, key, err := create(base, tmpl, nil)
	if err != nil {
		return nil, err
	}
	return &authority{cert: cert, key: key}, nil
}

// issue makes a certificate with one name, unless a valid one is there.
func (a *authority) issue(dir, name string) error {
	base := filepath.Join(dir, name)
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	if pair, err := tls.LoadX509KeyPair(base+".pem", base+".key"); err == nil {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: name, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err == nil {
			return nil
		}
	}
	tmpl := template(name)
	tmpl.DNSNames = []string{name}
	tmpl.KeyUsage = x509.KeyUsageDigitalSignature
	tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if name != EdgeName {
		tmpl.ExtKeyUsage = append(tmpl.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	_, _, err := create(base, tmpl, a)
	return err
}

func template(name string) *x509.Certificate {
	return &x509.Certificate{
		Subject:   pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), // a container's clock may be behind
		NotAfter:  time.Now().Add(certLife),
	}
}

// create makes a key and a certificate signed by a, or by itself.
func create(base string, tmpl *x509.Certificate, a *authority) (*x509.Certificate, crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	tmpl.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, err
	}
	parent, signer := tmpl, crypto.Signer(key)
	if a != nil {
		parent, signer = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, key.Public(), signer)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	if err := writeFile(base+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600); err != nil {
		return nil, nil, err
	}
	if err := writeFile(base+".pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644); err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return cert, key, err
}

// writeFile is whole or not there: a demo may be killed in the middle.
func writeFile(path string, data []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // no-op after the rename
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(mode), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// writeSigningKey makes an Ed25519 pair unless the key is there; the public
// half is always written again from it.
func writeSigningKey(base string) error {
	key, err := LoadSigningKey(base + ".key")
	if errors.Is(err, fs.ErrNotExist) {
		_, key, err = ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return err
		}
		err = writeFile(base+".key", encode(key.Seed()), 0o600)
	}
	if err != nil {
		return err
	}
	return writeFile(base+".pub", encode(key.Public().(ed25519.PublicKey)), 0o644)
}

func encode(b []byte) []byte { return []byte(base64.StdEncoding.EncodeToString(b) + "\n") }

func decode(path string, size int) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(b) != size {
		return nil, fmt.Errorf("%s: not %d bytes in base64", path, size)
	}
	return b, nil
}

// LoadSigningKey reads an Ed25519 key that WritePKI wrote: its 32-byte seed in
// base64.
func LoadSigningKey(path string) (ed25519.PrivateKey, error) {
	seed, err := decode(path, ed25519.SeedSize)
	if err != nil {
		return nil, err
	}
	return ed25519.NewKeyFromSeed(seed), nil
}

// LoadPublicKey reads a .pub file: the 32 bytes in base64, as ROUTE_KEY has it.
func LoadPublicKey(path string) (ed25519.PublicKey, error) {
	return decode(path, ed25519.PublicKeySize)
}

// LoadTLS reads base.pem, base.key and the CA beside them. The configuration
// serves both sides: TLS 1.3, and who comes without a certificate of this CA
// isn't let in.
func LoadTLS(base string) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(base+".pem", base+".key")
	if err != nil {
		return nil, fmt.Errorf("link: %w", err)
	}
	ca, err := os.ReadFile(filepath.Join(filepath.Dir(base), "ca.pem"))
	if err != nil {
		return nil, fmt.Errorf("link: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("link: no certificate in the CA file beside %s.pem", base)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{pair},
		RootCAs:      pool,
		ClientCAs:    pool,
		ClientAuth:   tls.RequireAndVerifyClientCert,
	}, nil
}
