package agentapi

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestBookAddsUpOverOneTime(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	b := NewBook(start)
	if got := b.Sums(map[string]Ways{"stock.reserve": {Messaged: 3, Begun: 3}}, at(1)); got != nil {
		t.Errorf("no gateway was heard, but %+v is known", got)
	}
	word := func(p string, from time.Time, n Ways) Word {
		return Word{Process: p, Start: from.UnixNano(), Kinds: map[string]Ways{"GET /me": n}}
	}
	old := at(-60)
	b.Note(word("a", old, Ways{Local: 1000, Forwarded: 50}), at(1)) // from before the book: only a base
	b.Note(word("a", old, Ways{Local: 1010, Forwarded: 52}), at(2))
	b.Note(word("b", at(1), Ways{Local: 5, Global: 1}), at(2))
	b.Note(word("a", at(3), Ways{Local: 2}), at(4)) // a was started anew
	b.Note(word("a", at(3), Ways{Local: 2}), at(5)) // a word again counts nothing
	sent := map[string]Ways{"stock.reserve": {Local: 9, Messaged: 4, Begun: 4}, "stock.confirm": {Messaged: 4}}
	want := &Requests{SinceMS: 10_000, AgeMS: 8_000, Local: 17 - 4, Forwarded: 3, Messaged: 4,
		Kinds: map[string]Ways{"GET /me": {Local: 17, Forwarded: 2, Global: 1}, "stock.reserve": {Local: 9, Messaged: 4, Begun: 4}, "stock.confirm": {Messaged: 4}}}
	got := b.Sums(sent, at(10))
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if share, ok := got.ClosedLoop(); !ok || share != 13.0/20 {
		t.Errorf("closed loop %v, %v, want 13 of 20", share, ok)
	}
	if _, ok := (Requests{}).ClosedLoop(); ok {
		t.Error("nothing counted has a share")
	}
	// A gateway that has ended ages nothing; when all are silent the age is theirs.
	b.Note(word("a", at(3), Ways{Local: 2}), at(100))
	if got := b.Sums(nil, at(101)); got.AgeMS != 1000 {
		t.Errorf("age %d ms, want that of the living one", got.AgeMS)
	}
	if got := b.Sums(nil, at(400)); got.AgeMS != 300_000 {
		t.Errorf("age %d ms, want that of the last word of all", got.AgeMS)
	}
	if got := b.Sums(map[string]Ways{"claim.begin": {Begun: 1000}}, at(101)); got.Local != 0 || got.Messaged != 17 {
		t.Errorf("more begun than counted: %+v", got)
	}
}
