package routing_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"example.com/cellmart/platform/routing"
)

func key(seed byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
}

func TestEncodeIsTheSameInAnyOrder(t *testing.T) {
	r := seeded(t)
	for range 20 {
		spec := randomSpec(r)
		want := mustBuild(t, spec).Encode()
		r.Shuffle(len(spec.Cells), func(i, j int) { spec.Cells[i], spec.Cells[j] = spec.Cells[j], spec.Cells[i] })
		r.Shuffle(len(spec.Voters), func(i, j int) { spec.Voters[i], spec.Voters[j] = spec.Voters[j], spec.Voters[i] })
		for i := range spec.Cells {
			slices.Reverse(spec.Cells[i].Keys)
		}
		if got := mustBuild(t, spec).Encode(); !bytes.Equal(got, want) {
			t.Fatalf("another order gives other bytes:\n%.300s\n%.300s", got, want)
		}
	}
}

func TestDecodeGivesTheTableBack(t *testing.T) {
	r := seeded(t)
	for range 20 {
		table := mustBuild(t, randomSpec(r))
		got, err := routing.Decode(table.Encode())
		if err != nil {
			t.Fatal(err)
		}
		for s := range routing.Slot(routing.Slots) {
			a, _ := table.Slot(s)
			if b, ok := got.Slot(s); !ok || a != b {
				t.Fatalf("Slot(%d) = %v, %v, want %v", s, b, ok, a)
			}
		}
		if !bytes.Equal(got.Encode(), table.Encode()) || got.Version() != table.Version() {
			t.Fatal("decoded table encodes differently")
		}
	}
}

// TestEncodeIsOneJSONDocument: the run lengths, which are written by hand, are
// the bytes that encoding/json would write, with the biggest numbers too.
func TestEncodeIsOneJSONDocument(t *testing.T) {
	r := seeded(t)
	for range 20 {
		spec := withHomes(r, randomSpec(r), r.IntN(5))
		for range 5 {
			spec.Slots[r.IntN(routing.Slots)].Epoch = routing.Epoch(math.MaxInt64 - r.Int64N(3))
		}
		doc := mustBuild(t, spec).Encode()
		if _, err := routing.Decode(doc); err != nil {
			t.Fatal(err)
		}
		var parts struct {
			Format    json.RawMessage   `json:"format"`
			Version   json.RawMessage   `json:"version"`
			Cells     json.RawMessage   `json:"cells"`
			Slots     [][4]int64        `json:"slots"`
			Private   json.RawMessage   `json:"private"`
			Voters    json.RawMessage   `json:"voters"`
			Overrides []json.RawMessage `json:"overrides,omitempty"`
			Groups    []json.RawMessage `json:"groups,omitempty"`
		}
		if err := json.Unmarshal(doc, &parts); err != nil {
			t.Fatal(err)
		}
		want, err := json.Marshal(parts)
		if err != nil || !bytes.Equal(doc, want) {
			t.Fatalf("encodes to\n%.600s\nwant\n%.600s (%v)", doc, want, err)
		}
		at, sum := 0, int64(0) // runs are as long as they can be
		for i, run := range parts.Slots {
			if i > 0 && [3]int64(run[1:]) == [3]int64(parts.Slots[at][1:]) {
				t.Fatalf("runs %d and %d are one", at, i)
			}
			at, sum = i, sum+run[0]
		}
		if sum != routing.Slots {
			t.Fatalf("runs of %d slots", sum)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	good := string(routing.Spread([]string{"c1", "c2"}).Encode())
	if _, err := routing.Decode([]byte(good)); err != nil {
		t.Fatal(err)
	}
	replace := func(old, new string) string {
		out := bytes.Replace([]byte(good), []byte(old), []byte(new), 1)
		if string(out) == good {
			t.Fatalf("%q isn't in %.400s", old, good)
		}
		return string(out)
	}
	for name, b := range map[string]string{
		"nothing":              "",
		"null":                 "null",
		"cut":                  good[:len(good)-1],
		"trailing":             good + " ",
		"a format to come":     replace(`"format":1`, `"format":3`),
		"format 2 for nothing": replace(`"format":1`, `"format":2`),
		"a field to come":      replace(`"format":1`, `"format":1,"overrides":[]`),
		"other case":           replace(`"version"`, `"Version"`),
		"null list":            replace(`"keys":[]`, `"keys":null`),
		"split run":            replace(`[8192,1,0,1]`, `[8191,1,0,1],[1,1,0,1]`),
		"run of 0":             replace(`[8192,1,0,1]`, `[8192,1,0,1],[0,1,0,1]`),
		"run too long":         replace(`[8192,1,0,1]`, `[8193,1,0,1]`),
		"run far too long":     replace(`[8192,1,0,1]`, `[9223372036854775807,1,0,1]`),
		"negative run":         replace(`[8192,1,0,1]`, `[-8192,1,0,1]`),
		"no runs":              replace(`[8192,1,0,1],[8192,2,0,1]`, ``),
		"runs cut":             replace(`[8192,1,0,1],[8192,2,0,1]`, `[8192,1,0,1],[8192,2,0`),
		"run of three":         replace(`[8192,1,0,1]`, `[8192,1,0]`),
		"run of five":          replace(`[8192,1,0,1]`, `[8192,1,0,1,1]`),
		"no number":            replace(`[8192,1,0,1]`, `[8192,,0,1]`),
		"zero in front":        replace(`[8192,1,0,1]`, `[8192,1,0,01]`),
		"plus":                 replace(`[8192,1,0,1]`, `[8192,1,0,+1]`),
		"fraction":             replace(`[8192,1,0,1]`, `[8192,1,0,1.0]`),
		"blank in a run":       replace(`[8192,1,0,1]`, `[8192, 1,0,1]`),
		"no comma":             replace(`[8192,1,0,1],`, `[8192,1,0,1]`),
		"comma at the end":     replace(`[8192,2,0,1]`, `[8192,2,0,1],`),
		"epoch too big":        replace(`[8192,1,0,1]`, `[8192,1,0,9223372036854775808]`),
		"epoch wraps":          replace(`[8192,1,0,1]`, `[8192,1,0,18446744073709551617]`),
		"runs twice":           replace(`"private":`, `"slots":[[16384,1,0,1]],"private":`),
		"runs elsewhere":       replace(`"format":1`, `"format":1,"x":{"slots":[[16384,1,0,1]],"private":[]}`),
		"blank after slots":    replace(`"slots":[`, `"slots": [`),
		"unknown cell":         replace(`[8192,1,0,1]`, `[8192,3,0,1]`),
		"nobody":               replace(`[8192,1,0,1]`, `[8192,0,0,1]`),
		"private overflow":     replace(`[16385,1,0,1]`, `[4294983681,1,0,1]`),
		"cells out of order": replace(`"cells":[{"name":"c1","ordinal":1,"region":"","weight":1,"keys":[]},{"name":"c2","ordinal":2,"region":"","weight":1,"keys":[]}]`,
			`"cells":[{"name":"c2","ordinal":2,"region":"","weight":1,"keys":[]},{"name":"c1","ordinal":1,"region":"","weight":1,"keys":[]}]`),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := routing.Decode([]byte(b)); !errors.Is(err, routing.ErrTable) {
				t.Errorf("Decode = %v, want ErrTable", err)
			}
		})
	}
}

func TestSigned(t *testing.T) {
	r := seeded(t)
	table := mustBuild(t, randomSpec(r))
	priv := key(1)
	pub := priv.Public().(ed25519.PublicKey)
	signed := routing.Sign(priv, table).Bytes()
	got, err := routing.Open(pub, signed)
	if err != nil || !bytes.Equal(got.Encode(), table.Encode()) {
		t.Fatalf("Open = %v", err)
	}
	if _, err := routing.Open(key(2).Public().(ed25519.PublicKey), signed); !errors.Is(err, routing.ErrSignature) {
		t.Errorf("another key: %v, want ErrSignature", err)
	}
	if _, err := routing.Open(nil, signed); !errors.Is(err, routing.ErrSignature) {
		t.Errorf("no key: %v, want ErrSignature", err)
	}
	naked := routing.Signed{Payload: table.Encode(), KeyID: routing.KeyID(pub), Sig: ed25519.Sign(priv, table.Encode())}
	if _, err := routing.Open(pub, naked.Bytes()); !errors.Is(err, routing.ErrSignature) {
		t.Errorf("a signature that wasn't made for tables: %v, want ErrSignature", err)
	}
	zero := routing.Sign(priv, routing.Spread([]string{"c1"})).Bytes()
	if _, err := routing.Open(pub, zero); !errors.Is(err, routing.ErrTable) {
		t.Errorf("version 0: %v, want ErrTable", err)
	}
	for range 500 {
		bad := slices.Clone(signed)
		if r.IntN(2) == 0 {
			bad = bad[:r.IntN(len(bad))]
		} else {
			bad[r.IntN(len(bad))] ^= 1 << r.IntN(8)
		}
		if _, err := routing.Open(pub, bad); err == nil {
			t.Fatalf("a spoilt table opens: %.200q", bad)
		}
	}
}

// FuzzDecode: whatever decodes is whole and encodes to the very bytes.
func FuzzDecode(f *testing.F) {
	f.Add(routing.Spread([]string{"c1"}).Encode())
	f.Add(routing.Spread([]string{"c1", "c2", "c3"}).Encode())
	r := rand.New(rand.NewPCG(1, 2))
	spec := randomSpec(r)
	table, err := routing.Build(spec)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(table.Encode())
	if table, err = routing.Build(withHomes(r, spec, 20)); err != nil {
		f.Fatal(err)
	}
	f.Add(table.Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		table, err := routing.Decode(b)
		if err != nil {
			if !errors.Is(err, routing.ErrTable) {
				t.Fatalf("%v is no ErrTable", err)
			}
			return
		}
		if !bytes.Equal(table.Encode(), b) {
			t.Fatal("decodes, but encodes differently")
		}
		for s := range routing.Slot(routing.Slots) {
			if a, ok := table.Slot(s); !ok || a.Owner == "" || a.Epoch < 1 {
				t.Fatalf("Slot(%d) = %v, %v", s, a, ok)
			}
		}
		for user, want := range table.Spec().Overrides {
			if s, a, ok := table.Home(user); !ok || s != want || !s.Private() || a.Owner == "" {
				t.Fatalf("Home(%d) = %d, %v, %v, want slot %d", user, s, a, ok, want)
			}
		}
	})
}

// FuzzOpen: nothing opens but what the key signed.
func FuzzOpen(f *testing.F) {
	priv := key(1)
	spec := routing.Spread([]string{"c1", "c2"}).Spec()
	spec.Version = 1
	table, err := routing.Build(withHomes(rand.New(rand.NewPCG(1, 2)), spec, 3))
	if err != nil {
		f.Fatal(err)
	}
	good := routing.Sign(priv, table).Bytes()
	f.Add(good)
	f.Add([]byte("cellmart-route-1  \n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := routing.Open(priv.Public().(ed25519.PublicKey), b); err == nil && !bytes.Equal(b, good) {
			t.Fatal("opens without having been signed")
		}
	})
}
