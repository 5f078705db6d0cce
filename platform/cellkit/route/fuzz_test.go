package route

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"strings"
	"testing"

	"example.com/cellmart/platform/routing"
)

// fuzzed makes a table of that version, signed.
func fuzzed(f *testing.F, priv ed25519.PrivateKey, version int64) []byte {
	f.Helper()
	spec := routing.Spread([]string{"c1", "c2"}).Spec()
	spec.Version = version
	t, err := routing.Build(spec)
	if err != nil {
		f.Fatal(err)
	}
	return routing.Sign(priv, t).Bytes()
}

// FuzzTake: whatever the agent, a push or Redis brings, a follower never goes
// back and takes nothing but what the key signed.
func FuzzTake(f *testing.F) {
	priv := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize))
	other := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{2}, ed25519.SeedSize))
	good := fuzzed(f, priv, 5)
	old := fuzzed(f, priv, 3)
	same := fuzzed(f, priv, 4)
	held, err := routing.Open(priv.Public().(ed25519.PublicKey), same)
	if err != nil {
		f.Fatal(err)
	}
	for _, b := range [][]byte{good, old, same, fuzzed(f, other, 6), good[:len(good)/2], nil, []byte("null"), bytes.Replace(good, []byte(`"version":5`), []byte(`"version":9`), 1)} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h routing.Holder
		h.Store(held)
		follower := Open(Options{Key: priv.Public().(ed25519.PublicKey)}, &h)
		err := follower.take(b, "fuzz")
		taken := bytes.Equal(b, good)
		if sound := taken || bytes.Equal(b, old) || bytes.Equal(b, same); sound != (err == nil) {
			t.Fatalf("take = %v of %.200q", err, b)
		}
		if want := int64(4); !taken && h.Version() != want || taken && h.Version() != 5 {
			t.Fatalf("version %d is held after %.200q", h.Version(), b)
		}
	})
}

// FuzzAcks: whatever a process says on the bus, the list has only what can be
// printed, and nobody is forgotten by another's word.
func FuzzAcks(f *testing.F) {
	for _, s := range []string{`{"process":"c1/order","version":4}`, `{"process":"known","version":7,"gone":true}`, `{"process":"","version":1}`,
		`{"process":"x","version":-1}`, `{"process":"\u001b[2J","version":1}`, `{"version":1e30}`, `[]`, ``, `null`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		a := NewAcks()
		a.Hold(5)
		if err := a.Note(Ack{Process: "known", Version: 5}); err != nil {
			t.Fatal(err)
		}
		err := a.Parse(b)
		list := a.List()
		if err != nil && (len(list) != 1 || list[0].Version != 5) {
			t.Fatalf("refused %.200q (%v), but the list is %+v", b, err, list)
		}
		for _, h := range list {
			if h.Version < 0 || len(h.Process) == 0 || len(h.Process) > 100 || strings.ContainsFunc(h.Process, func(r rune) bool { return r < '!' || r > '~' }) {
				t.Fatalf("%.200q is listed as %+q", b, fmt.Sprint(h))
			}
			if (h.Behind >= 0) != (h.Version < 5) {
				t.Fatalf("%.200q: version %d beside 5, behind %s", b, h.Version, h.Behind)
			}
		}
	})
}

// FuzzLinks: what can't be read leaves the last states, and only a zone that was
// told of is known.
func FuzzLinks(f *testing.F) {
	for _, s := range []string{`{"c2":{"up":true,"since_ms":5,"rtt_ms":0.4}}`, `{"c1":{"up":true},"c2":{"up":false}}`, `{}`, `null`, `{"c2":null}`, `{"c2":{"up":"yes"}}`, `{"c2":{"up":true}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var l Links
		if err := l.Update([]byte(`{"c1":{"up":true}}`)); err != nil {
			t.Fatal(err)
		}
		if err := l.Update(b); err != nil {
			if up, known := l.Up("c1"); !up || !known {
				t.Fatalf("refused %.200q, and c1 was forgotten", b)
			}
			return
		}
		all, _ := l.All()
		for zone, s := range all {
			if up, known := l.Up(zone); !known || up != s.Up {
				t.Fatalf("%.200q: zone %q is %v, %v", b, zone, up, known)
			}
		}
		if up, known := l.Up("no zone\x00 of anybody"); known && all["no zone\x00 of anybody"].Up != up || !known && up {
			t.Fatalf("%.200q: a zone that nobody told of is up", b)
		}
	})
}
