package userapi_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/user/userapi"
)

var now = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)

func setup(t testing.TB) (*routing.Table, ed25519.PrivateKey, userapi.Claims) {
	t.Helper()
	spec := routing.Spread([]string{"c1", "c2"}).Spec()
	var keys [2]ed25519.PrivateKey
	for i := range spec.Cells {
		keys[i] = ed25519.NewKeyFromSeed([]byte(strings.Repeat(string(rune('a'+i)), 32)))
		pub := keys[i].Public().(ed25519.PublicKey)
		spec.Cells[i].Keys = []routing.PublicKey{{ID: routing.KeyID(pub), Key: pub}}
	}
	table, err := routing.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	return table, keys[0], userapi.Claims{User: 1<<14 | 5, Slot: 5, Cell: "c1", IssuedAt: now.Unix(), ExpiresAt: now.Add(userapi.TokenLife).Unix(), Seller: true, Name: "Ann 安"}
}

func TestTokenRoundTrip(t *testing.T) {
	t.Parallel()
	table, key, c := setup(t)
	token, err := userapi.Sign(key, c)
	if err != nil {
		t.Fatal(err)
	}
	got, err := userapi.Verify(table, token, now.Add(9*time.Minute))
	c.KeyID = got.KeyID
	if err != nil || got != c || got.KeyID == "" {
		t.Errorf("Verify = %+v, %v, want %+v", got, err, c)
	}
	for at, want := range map[time.Duration]error{
		userapi.TokenLife - time.Second: nil, userapi.TokenLife: userapi.ErrTokenExpired, time.Hour: userapi.ErrTokenExpired,
		-59 * time.Second: nil, -2 * time.Minute: userapi.ErrToken, // from the future: a clock is wrong
	} {
		if _, err := userapi.Verify(table, token, now.Add(at)); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%v after it was signed: %v, want %v", at, err, want)
		}
	}
	if _, err := userapi.Verify(nil, token, now); !errs.IsKind(err, errs.Unavailable) {
		t.Errorf("without a table: %v", err)
	}
	if _, err := userapi.Sign(key[:10], c); err == nil {
		t.Error("signed with half a key")
	}
}

func TestTokenForgeries(t *testing.T) {
	t.Parallel()
	table, key, c := setup(t)
	good, _ := userapi.Sign(key, c)
	payload, sig, _ := strings.Cut(good, ".")
	enc := base64.RawURLEncoding
	stranger := ed25519.NewKeyFromSeed([]byte(strings.Repeat("z", 32)))
	// edited signs nothing: other claims under the old signature.
	edited := func(edit func(m map[string]any)) string {
		raw, _ := enc.DecodeString(payload)
		m := map[string]any{}
		if err := json.Unmarshal(raw, &m); err != nil {
			t.Fatal(err)
		}
		edit(m)
		raw, _ = json.Marshal(m)
		return enc.EncodeToString(raw) + "." + sig
	}
	other := c
	other.Cell = "c2" // c1's key signs for c2
	asOther, _ := userapi.Sign(key, other)
	byStranger, _ := userapi.Sign(stranger, c)
	strangerNamed := func() string {
		raw, _ := enc.DecodeString(payload)
		text := enc.EncodeToString(raw)
		return text + "." + enc.EncodeToString(ed25519.Sign(stranger, []byte("cellmart-session-1\x00"+text)))
	}()
	undomained := payload + "." + enc.EncodeToString(ed25519.Sign(key, []byte(payload)))
	noUser := c
	noUser.User = 0
	nobody, _ := userapi.Sign(key, noUser)
	for name, token := range map[string]string{
		"empty": "", "dot": ".", "no dot": payload, "payload only": payload + ".", "signature only": "." + sig, "twice": good + "." + sig,
		"cut": good[:len(good)-1], "longer": good + "A", "padded": good + "=", "too long": strings.Repeat("A", 3000) + "." + sig,
		"another user":      edited(func(m map[string]any) { m["user"] = "99" }),
		"a seller":          edited(func(m map[string]any) { m["seller"] = !c.Seller }),
		"lives longer":      edited(func(m map[string]any) { m["exp"] = c.ExpiresAt + 1 }),
		"names no key":      edited(func(m map[string]any) { m["kid"] = "none" }),
		"names an unknown":  edited(func(m map[string]any) { m["cell"] = "c9" }),
		"more fields":       edited(func(m map[string]any) { m["alg"] = "none" }),
		"for another cell":  asOther,
		"by a stranger":     byStranger,
		"key of a stranger": strangerNamed,
		"another use":       undomained,
		"nobody's":          nobody,
	} {
		if got, err := userapi.Verify(table, token, now); !errors.Is(err, userapi.ErrToken) || got != (userapi.Claims{}) {
			t.Errorf("%s: %+v, %v, want INVALID_TOKEN", name, got, err)
		}
	}
	// Every single flipped bit of the signature, and of the payload's text.
	for i := range good {
		for _, bit := range []byte{1, 2, 4, 8, 16, 32} {
			b := []byte(good)
			b[i] ^= bit
			if _, err := userapi.Verify(table, string(b), now); err == nil {
				t.Fatalf("character %d with bit %d flipped is still good", i, bit)
			}
		}
	}
}

func FuzzVerify(f *testing.F) {
	table, key, c := setup(f)
	good, _ := userapi.Sign(key, c)
	f.Add(good)
	f.Add("e30.AAAA")
	f.Fuzz(func(t *testing.T, token string) {
		if _, err := userapi.Verify(table, token, now); err == nil && token != good {
			t.Errorf("%q is good", token)
		}
	})
}
