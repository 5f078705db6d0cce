package id

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"example.com/cellmart/platform/routing"
)

func numbers(t testing.TB) *Numbers {
	t.Helper()
	n, err := NewNumbers([]byte("0123456789abcdef0123456789abcdef"))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func seeded(t testing.TB) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

func randomID(r *rand.Rand) ID {
	for {
		if i := ID(r.Int64()); i != 0 {
			return i
		}
	}
}

func TestNumbersGoBack(t *testing.T) {
	t.Parallel()
	n, r := numbers(t), seeded(t)
	ids := []ID{1, Make(0, 1, false), Make(1, 0, false), Make(MaxSeq, routing.Slots-1, true), Make(MaxSeq, 0, false), Make(0, 0, true)}
	for range 20_000 {
		ids = append(ids, randomID(r))
	}
	for _, i := range ids {
		s := n.Encode(i)
		if len(s) != 16 || s[4] != '-' || s[10] != '-' {
			t.Fatalf("Encode(%d) = %q, want XXXX-XXXXX-XXXXX", i, s)
		}
		loose := strings.NewReplacer("0", "o", "1", "l").Replace(strings.ToLower(s))
		for _, form := range []string{s, strings.ToLower(s), strings.ReplaceAll(s, "-", ""), loose, strings.ReplaceAll(loose, "l", "I"), strings.Replace(s, "-", "", 1)} {
			if got, err := n.Decode(form); got != i || err != nil {
				t.Fatalf("Decode(%q) = %d, %v, want %d", form, got, err, i)
			}
			if got, err := NumberSlot(form); got != i.Slot() || err != nil {
				t.Fatalf("NumberSlot(%q) = %d, %v, want %d", form, got, err, i.Slot())
			}
		}
	}
}

// Every single substitution and every swap of neighbours, hyphens and other
// bytes included: refused, or (hyphens, look-alikes) the same ID.
func TestNumbersCatchSlips(t *testing.T) {
	t.Parallel()
	n, r := numbers(t), seeded(t)
	for range 300 {
		want := randomID(r)
		s := n.Encode(want)
		for _, text := range []string{s, strings.ReplaceAll(s, "-", "")} {
			for p := range len(text) {
				for c := range 256 {
					slip := []byte(text)
					slip[p] = byte(c)
					same := valueOf[text[p]] == valueOf[c] && text[p] != '-' && c != '-' || text[p] == byte(c)
					got, err := n.Decode(string(slip))
					if same != (err == nil) || same && got != want {
						t.Fatalf("Decode(%q), one symbol off %q = %d, %v", slip, text, got, err)
					}
				}
				if p == 0 || text[p] == text[p-1] {
					continue
				}
				slip := []byte(text)
				slip[p], slip[p-1] = slip[p-1], slip[p]
				if got, err := n.Decode(string(slip)); !errors.Is(err, ErrMalformed) {
					t.Fatalf("Decode(%q), neighbours of %q swapped = %d, %v", slip, text, got, err)
				}
			}
		}
		// A swap across a hyphen swaps neighbours too.
		for _, p := range []int{4, 10} {
			slip := []byte(s)
			slip[p-1], slip[p+1] = slip[p+1], slip[p-1]
			if _, err := n.Decode(string(slip)); err == nil && slip[p-1] != slip[p+1] {
				t.Fatalf("Decode(%q), neighbours of %q swapped: accepted", slip, s)
			}
		}
	}
}

func TestNumbersRefuse(t *testing.T) {
	t.Parallel()
	n := numbers(t)
	good := n.Encode(Make(12345, 77, false))
	for _, s := range []string{
		"", "-", good[:15], good + "0", "--" + good[:14], good[:4] + "--" + good[5:], good[:13], " " + good[1:],
		strings.Repeat("0", 14), strings.Repeat("-", 16), "U" + good[1:], "12345",
	} {
		if got, err := n.Decode(s); !errors.Is(err, ErrMalformed) {
			t.Errorf("Decode(%q) = %d, %v, want ErrMalformed", s, got, err)
		}
		if got, err := NumberSlot(s); !errors.Is(err, ErrMalformed) {
			t.Errorf("NumberSlot(%q) = %d, %v, want ErrMalformed", s, got, err)
		}
	}
	if _, err := NewNumbers([]byte("short")); !errors.Is(err, ErrKey) {
		t.Errorf("a short key: %v, want ErrKey", err)
	}
}

// Consecutive sequences must not look it, must not collide, and another key or
// slot must give another order.
func TestNumbersDoNotCount(t *testing.T) {
	t.Parallel()
	n := numbers(t)
	other, err := NewNumbers([]byte("another key of 16+ bytes"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[uint64]bool{}
	var rising, near int
	last := uint64(0)
	const count = 100_000
	for seq := range uint64(count) {
		x := n.seal(seq, 5)
		if x > MaxSeq || seen[x] {
			t.Fatalf("seal(%d) = %d: out of range or given before", seq, x)
		}
		seen[x] = true
		if back := n.open(x, 5); back != seq {
			t.Fatalf("open(seal(%d)) = %d", seq, back)
		}
		if x > last {
			rising++
		}
		if d := int64(x) - int64(last); d > -1<<32 && d < 1<<32 {
			near++
		}
		if x == other.seal(seq, 5) || x == n.seal(seq, 6) {
			t.Fatalf("seal(%d) is the same under another key or slot", seq)
		}
		last = x
	}
	if rising < count*48/100 || rising > count*52/100 {
		t.Errorf("%d of %d numbers are above the one before, want about half", rising, count)
	}
	if near > 50 { // expected: 2 * 2^32 / 2^48 of them, about 3
		t.Errorf("%d of %d numbers are near the one before", near, count)
	}
}

func FuzzNumbers(f *testing.F) {
	n := numbers(f)
	f.Add(n.Encode(1))
	f.Add(n.Encode(Make(MaxSeq, 16383, true)))
	f.Add("0000-00000-00000")
	f.Fuzz(func(t *testing.T, s string) {
		i, err := n.Decode(s)
		if err != nil {
			if i != 0 || !errors.Is(err, ErrMalformed) {
				t.Fatalf("Decode(%q) = %d, %v", s, i, err)
			}
			return
		}
		plain := strings.NewReplacer("O", "0", "I", "1", "L", "1", "-", "").Replace(strings.ToUpper(s))
		if back := strings.ReplaceAll(n.Encode(i), "-", ""); i <= 0 || back != plain {
			t.Fatalf("Decode(%q) = %d, which is written %q", s, i, back)
		}
	})
}

func BenchmarkNumbers(b *testing.B) {
	n := numbers(b)
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		for i := range b.N {
			_ = n.Encode(ID(i + 1<<40))
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		s := n.Encode(1 << 40)
		for b.Loop() {
			if _, err := n.Decode(s); err != nil {
				b.Fatal(err)
			}
		}
	})
}
