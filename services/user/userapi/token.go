package userapi

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
)

// TokenLife is how long a session lasts without logging in again.
const TokenLife = 10 * time.Minute

const (
	tokenDomain = "cellmart-session-1\x00" // a signature of this key for another use is no token
	maxToken    = 2048
	tokenSkew   = time.Minute // between the cells' clocks
)

// Why a token doesn't count.
var (
	ErrToken        = errs.New(errs.Unauthenticated, "INVALID_TOKEN", "the token is not valid, log in again")
	ErrTokenReused  = errs.New(errs.Unauthenticated, "TOKEN_REUSED", "the refresh token was used before: its login is ended, log in again")
	ErrTokenExpired = errs.New(errs.Unauthenticated, "TOKEN_EXPIRED", "the session is over, log in again")
)

// Claims is what a token says about who carries it.
type Claims struct {
	User      id.ID        `json:"user"`
	Slot      routing.Slot `json:"slot"` // where the user's rows were when it was made
	Cell      string       `json:"cell"` // who signed it
	KeyID     string       `json:"kid"`
	IssuedAt  int64        `json:"iat"` // Unix seconds
	ExpiresAt int64        `json:"exp"`
	Seller    bool         `json:"seller"`
	Name      string       `json:"name"`
}

// Sign makes a token: base64url(JSON) "." base64url(Ed25519 signature). KeyID is
// set from the key.
func Sign(key ed25519.PrivateKey, c Claims) (string, error) {
	if len(key) != ed25519.PrivateKeySize {
		return "", fmt.Errorf("sign a token: the key has %d bytes", len(key))
	}
	c.KeyID = routing.KeyID(key.Public().(ed25519.PublicKey))
	payload, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("sign a token: %w", err)
	}
	text := base64.RawURLEncoding.EncodeToString(payload)
	sig := ed25519.Sign(key, []byte(tokenDomain+text))
	return text + "." + base64.RawURLEncoding.EncodeToString(sig), nil
}

// Verify checks a token against the keys in the route table, so any cell can do
// it without asking anyone. There is one algorithm and the token doesn't name
// it. The error is ErrToken or ErrTokenExpired.
func Verify(t *routing.Table, token string, now time.Time) (Claims, error) {
	var c Claims
	text, sigText, ok := strings.Cut(token, ".")
	if len(token) > maxToken || !ok {
		return c, ErrToken.Because(fmt.Errorf("a token of %d bytes", len(token)))
	}
	sig, err := base64.RawURLEncoding.Strict().DecodeString(sigText)
	if err != nil || len(sig) != ed25519.SignatureSize {
		return c, ErrToken.Because(fmt.Errorf("signature: %w", err))
	}
	payload, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return c, ErrToken.Because(err)
	}
	// Read before it is proven, only to find the key; nothing of it is used else.
	d := json.NewDecoder(bytes.NewReader(payload))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return Claims{}, ErrToken.Because(err)
	}
	if t == nil {
		return Claims{}, errs.ErrUnavailable.Because(fmt.Errorf("no route table yet"))
	}
	key, ok := t.Key(c.Cell, c.KeyID)
	if !ok || len(key) != ed25519.PublicKeySize {
		return Claims{}, ErrToken.Because(fmt.Errorf("cell %q has no key %q in table %d", c.Cell, c.KeyID, t.Version()))
	}
	switch {
	case !ed25519.Verify(key, []byte(tokenDomain+text), sig):
		return Claims{}, ErrToken.Because(fmt.Errorf("signature of cell %q, key %q", c.Cell, c.KeyID))
	case c.User <= 0 || c.Slot < 0 || now.Add(tokenSkew).Unix() < c.IssuedAt:
		return Claims{}, ErrToken.Because(fmt.Errorf("claims %+v", c))
	case now.Unix() >= c.ExpiresAt:
		return Claims{}, ErrTokenExpired
	}
	return c, nil
}
