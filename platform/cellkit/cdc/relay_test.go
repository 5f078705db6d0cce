package cdc_test

import (
	"io/fs"
	"strings"
	"testing"

	"example.com/cellmart/platform/cellkit/cdc"
)

func subTestdata() (fs.FS, error) { return fs.Sub(shopFiles, "testdata/migrations") }

// A row changed by hand shows up, whoever wrote it: this is the WAL, not the outbox.
func TestChangesComeThrough(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add(1, 3) // before anything runs
	w.relay(nil)
	w.sink()
	w.equal()
	w.add(4, 5)
	w.super(`DO $$ BEGIN PERFORM cell.enter(7, 1); UPDATE shop.things SET name = 'by hand' WHERE id = 2; END $$`)
	w.equal()
	if w.begins != 1 {
		t.Errorf("%d copies, want one", w.begins)
	}
	w.super(`DO $$ BEGIN PERFORM cell.enter(7, 1); DELETE FROM shop.things WHERE id = 3; UPDATE shop.things SET id = 40 WHERE id = 4; END $$`)
	w.equal()
}

// A large value that an update leaves alone isn't in the WAL's message, and stays.
func TestUnchangedLargeValues(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.relay(nil)
	w.sink()
	w.add(1, 1)
	// Not compressible, or it would stay in the row.
	w.write("UPDATE shop.things SET note = (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 500) n)")
	w.equal()
	w.write("UPDATE shop.things SET name = 'other'")
	w.equal()
	if n := len(w.things["1"].Note); n != 16000 {
		t.Errorf("the note has %d characters, want 16000", n)
	}
}

// A column that isn't in the sink's list is nowhere on the stream.
func TestOnlyWhatIsListedLeaves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.relay(nil)
	w.sink()
	w.add(1, 2)
	w.equal()
	w.halt("sink")
	w.add(3, 4)
	js := w.js()
	wait(t, "the change is in the stream", func() bool {
		s, err := js.Stream(t.Context(), cdc.StreamName("test"))
		if err != nil {
			return false
		}
		m, err := s.GetLastMsgForSubject(t.Context(), "cdc.test.c1")
		for err == nil && m.Sequence > 1 {
			text := string(m.Data)
			if strings.Contains(text, "secret") || strings.Contains(text, "never leaves") {
				t.Fatalf("the stream has %s", text)
			}
			if strings.Contains(text, "thing 4") {
				return true
			}
			m, err = s.GetMsg(t.Context(), m.Sequence-1)
		}
		return false
	})
}

// S-C01, after pgcapture#56: what was written while the relay was away is never skipped.
func TestScenario_C01_BacklogIsNotSkipped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.relay(nil)
	w.sink()
	w.add(1, 1)
	w.equal()
	for round := range 3 {
		w.halt("relay")
		w.add(10*round+10, 10*round+19)
		w.super("SELECT pg_switch_wal()")
		w.relay(nil)
		w.equal()
	}
	if w.begins != 1 {
		t.Errorf("%d copies: the backlog came by copying, not by the stream", w.begins)
	}
}
