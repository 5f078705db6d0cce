package id

import (
	"encoding/json"
	"errors"
	"testing"

	"example.com/cellmart/platform/routing"
)

func TestLayout(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		seq      int64
		slot     routing.Slot
		fallback bool
		want     ID
	}{
		{0, 1, false, 1},
		{1, 0, false, 1 << 14},
		{MaxSeq, routing.Slots - 1, false, 1<<62 - 1},
		{MaxSeq, routing.Slots - 1, true, 1<<63 - 1},
		{0, 0, true, 1 << 62},
	} {
		i := Make(tc.seq, tc.slot, tc.fallback)
		if i != tc.want || i.Seq() != tc.seq || i.Slot() != tc.slot || i.Fallback() != tc.fallback {
			t.Errorf("Make(%d, %d, %v) = %d: seq %d, slot %d, fallback %v", tc.seq, tc.slot, tc.fallback, i, i.Seq(), i.Slot(), i.Fallback())
		}
		if back, err := Parse(i.String()); back != i || err != nil {
			t.Errorf("Parse(%q) = %d, %v", i, back, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "0", "-1", "+1", "01", " 1", "1 ", "1e3", "9223372036854775808", "99999999999999999999", "٣"} {
		if i, err := Parse(s); !errors.Is(err, ErrMalformed) || i != 0 {
			t.Errorf("Parse(%q) = %d, %v, want ErrMalformed", s, i, err)
		}
	}
}

func TestJSONIsAString(t *testing.T) {
	t.Parallel()
	big := ID(1<<53 + 1)
	b, err := json.Marshal(struct{ ID ID }{big})
	if want := `{"ID":"9007199254740993"}`; string(b) != want || err != nil {
		t.Errorf("Marshal = %s, %v, want %s", b, err, want)
	}
	for _, s := range []string{"9007199254740993", `""`, `"0"`, `"-1"`, "null", `"x"`} {
		var i ID
		if err := json.Unmarshal([]byte(s), &i); err == nil && s != "null" {
			t.Errorf("Unmarshal(%s) = %d, want an error", s, i)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("1")
	f.Add("9223372036854775807")
	f.Fuzz(func(t *testing.T, s string) {
		if i, err := Parse(s); err == nil && (i <= 0 || i.String() != s) {
			t.Fatalf("Parse(%q) = %d", s, i)
		}
	})
}
