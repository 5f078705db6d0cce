package cdc_test

import (
	"encoding/hex"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/cellkit/cdc"
)

func sample() []cdc.Message {
	columns := []string{"slot", "id", "name", "note"}
	at := time.Date(2026, 11, 30, 8, 0, 0, 123000, time.UTC)
	return []cdc.Message{
		{Kind: cdc.KindTx, Zone: "c1", Incarnation: "x.1", LSN: 0x16B3748, Prev: 0x16B3700, Commit: 0x16B3718, Chunk: 1, Chunks: 1, At: at, Rows: []cdc.Row{
			{Table: "shop.things", Op: cdc.Insert, Columns: columns, Values: []cdc.Value{{Text: "7"}, {Text: "1"}, {Text: "pot"}, {State: cdc.Null}}},
			{Table: "shop.things", Op: cdc.Update, Columns: columns, Values: []cdc.Value{{Text: "7"}, {Text: "1"}, {Text: ""}, {State: cdc.Same}}},
			{Table: "cell.slots", Op: cdc.Delete, Columns: []string{"slot"}, Values: []cdc.Value{{Text: "9"}}},
		}},
		{Kind: cdc.KindTx, Zone: "c1", Incarnation: "x.1", LSN: 0x16B3790, Prev: 0x16B3748, Commit: 0x16B3760, Chunk: 1, Chunks: 1, At: at},
		{Kind: cdc.KindBegin, Zone: "c1", Incarnation: "x.1", LSN: 1, Prev: 2, At: at, Copy: "a/1", Slots: []int32{7, 16383, 16390}},
		{Kind: cdc.KindEnd, Zone: "c1", Incarnation: "x.1", LSN: 1, Prev: 2, Copy: "a/1", N: 3},
		{Kind: cdc.KindResync, Zone: "c1", Incarnation: "x.1", Reason: "gone"},
	}
}

func TestBundleRoundTrip(t *testing.T) {
	t.Parallel()
	want := sample()
	got, err := cdc.Decode(cdc.Encode(nil, want))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// The bytes are read by other versions of the programs.
func TestBundleGolden(t *testing.T) {
	t.Parallel()
	const want = "c10102633103782e31020000c8eeac0b80eeac0bf681aabeb9deb00698eeac0b0300000b73686f702e7468696e67730404736c6f74026964046e616d65046e6f74650337033105706f7400010003370331020102010a63656c6c2e736c6f74730104736c6f740339000090efac0bc8eeac0bf681aabeb9deb006e0eeac0b00"
	if got := hex.EncodeToString(cdc.Encode(nil, sample()[:2])); got != want {
		t.Errorf("got\n%s, want\n%s", got, want)
	}
}

// A bundle that is cut anywhere is an error, not less than it was.
func TestCutBundle(t *testing.T) {
	t.Parallel()
	whole := cdc.Encode(nil, sample())
	for n := range whole {
		if _, err := cdc.Decode(whole[:n]); err == nil {
			t.Fatalf("the first %d of %d bytes were taken", n, len(whole))
		}
	}
	if _, err := cdc.Decode(append(whole, 0)); err == nil {
		t.Errorf("a byte too many: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(cdc.Encode(nil, sample()))
	f.Add(cdc.Encode(nil, nil))
	f.Add([]byte("\xc1\x01\x00\x00\xff\xff\xff\xff\x7f"))
	f.Fuzz(func(t *testing.T, b []byte) {
		ms, err := cdc.Decode(b)
		if err != nil {
			return
		}
		again, err := cdc.Decode(cdc.Encode(nil, ms))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(ms, again); d != "" {
			t.Error(d)
		}
	})
}
