package agent

import (
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/platform/cellkit/standby"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
)

// An owner hears the watermark and which of the slots are in sync, at their epochs,
// as the standby's database has them; a cell that keeps no copies says so.
func TestAppliedIsOutOfTheDatabase(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pool, err := pg.Open(t.Context(), db.AgentDSN, "c1", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	never := func() (*nats.Conn, error) { return nil, errors.New("not reached") }
	s := &server{cell: "c1", copies: standby.New(standby.Options{Cell: "c1", Pool: pool, Sources: map[string]func() (*nats.Conn, error){"c2": never}})}
	h := httptest.NewServer(s.peer(web.Options{Service: "agent", Cell: "c1"}))
	t.Cleanup(h.Close)
	c := &agentapi.Client{BaseURL: h.URL}
	ask := func(lsn int64, slots ...routing.Slot) agentapi.Answer {
		t.Helper()
		a, err := c.Applied(t.Context(), agentapi.Question{Source: "c2", LSN: lsn, Slots: slots})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	none := agentapi.Answer{InSync: map[routing.Slot]routing.Epoch{}}
	if diff := cmp.Diff(none, ask(1, 1)); diff != "" {
		t.Errorf("nothing applied yet (-want +got)\n%s", diff)
	}
	_, err = db.Super.Exec(t.Context(), `
		UPDATE cell.slots SET owner = 'c2', role = 'standby', standby = 'c1', epoch = 4 WHERE slot IN (1, 2, 3, 4);
		INSERT INTO cell.standby_slots (slot, source, epoch, state) VALUES (1, 'c2', 4, 'in_sync'), (2, 'c2', 4, 'copying'), (3, 'c2', 3, 'in_sync'), (4, 'c3', 4, 'in_sync');
		INSERT INTO cell.watermarks (source, position, incarnation, lsn) VALUES ('c2', '{"state": "live"}', 'a.1', '1/10')`)
	if err != nil {
		t.Fatal(err)
	}
	want := agentapi.Answer{Incarnation: "a.1", LSN: 1<<32 + 16, InSync: map[routing.Slot]routing.Epoch{1: 4}}
	for _, lsn := range []int64{0, 1<<32 + 16, 1<<32 + 17} { // the last one isn't there: as it is, after a while
		if diff := cmp.Diff(want, ask(lsn, 1, 1)); diff != "" {
			t.Errorf("at %d (-want +got)\n%s", lsn, diff)
		}
	}
	if diff := cmp.Diff(want, ask(1<<40, 4, 3, 2, 1)); diff != "" { // not in sync: no reason to wait
		t.Errorf("of all slots (-want +got)\n%s", diff)
	}
	if _, err := db.Super.Exec(t.Context(), `UPDATE cell.watermarks SET position = '{"state": ""}'`); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(none, ask(0, 1)); diff != "" {
		t.Errorf("a source that must be copied (-want +got)\n%s", diff)
	}
	if _, err := c.Applied(t.Context(), agentapi.Question{Source: "c9"}); !errs.IsKind(err, errs.Unavailable) {
		t.Errorf("a source that isn't followed: %v", err)
	}
	s.copies = nil
	if _, err := c.Applied(t.Context(), agentapi.Question{Source: "c2"}); !errs.IsKind(err, errs.Unavailable) {
		t.Errorf("without copies: %v", err)
	}
}

func TestOutputCommitModes(t *testing.T) {
	t.Parallel()
	for mode, ok := range map[string]bool{"": true, "timed": true, "strict": true, "off": true, "of": false, "TIMED": false} {
		c, r := loadConfig(func(name string) string {
			if name == "AGENT_OUTPUT_COMMIT" {
				return mode
			}
			return ""
		})
		if strings.Contains(text(r.Err()), "AGENT_OUTPUT_COMMIT") == ok {
			t.Errorf("%q: %v", mode, r.Err())
		}
		if mode == "" && c.OutputCommit != "timed" {
			t.Errorf("the default is %q", c.OutputCommit)
		}
	}
}

// The owner has outputs wait for a cell that is incoming, of all slots or says no; and
// names a place behind that, which that cell hears of.
func TestIncomingGates(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.publishNext(t, slots{10: {Owner: "c1", Standby: "c2", Epoch: 1}, 11: {Owner: "c1", Standby: "c2", Epoch: 1}})
	h := httptest.NewServer((&server{cell: "c1", operator: "secret", keeper: b.k, db: b.k.db}).peer(web.Options{Service: "agent", Cell: "c1"}))
	t.Cleanup(h.Close)
	c := &agentapi.Client{BaseURL: h.URL, OperatorKey: "secret"}
	set := func(gate bool, target string, list ...routing.Slot) (agentapi.Here, error) {
		return c.SetIncoming(t.Context(), agentapi.Incoming{Slots: list, Target: target, Gate: gate})
	}
	gates := func() (out string) {
		t.Helper()
		if err := b.db.Super.QueryRow(t.Context(), "SELECT coalesce(string_agg(slot::text, ' ' ORDER BY slot), '') FROM cell.slots WHERE gates").Scan(&out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	if at, err := set(true, "c3", 10, 11); err != nil || at.Changed != 2 || gates() != "" {
		t.Errorf("the first word: %+v, %v, gates %q: it has yet to be copied", at, err, gates())
	}
	var before string
	if err := b.db.Super.QueryRow(t.Context(), "SELECT pg_current_wal_insert_lsn()::text").Scan(&before); err != nil {
		t.Fatal(err)
	}
	at, err := set(true, "c3", 10, 11)
	if err != nil || at.Changed != 0 || gates() != "10 11" {
		t.Errorf("the second: %+v, %v, gates %q", at, err, gates())
	}
	var behind bool
	if err := b.db.Super.QueryRow(t.Context(), "SELECT $1::text::pg_lsn > $2::text::pg_lsn", at.LSN, before).Scan(&behind); err != nil || !behind {
		t.Errorf("it names %s, not behind %s (%v)", at.LSN, before, err)
	}
	if _, err := set(false, "c3", 10, 11); err != nil || gates() != "10 11" {
		t.Errorf("without the word they go on: %q, %v", gates(), err)
	}
	if _, err := set(false, "", 10); err != nil || gates() != "11" {
		t.Errorf("let go of 10: %q, %v", gates(), err)
	}
	if _, err := set(false, "c3", 10); err != nil || gates() != "11" {
		t.Errorf("and taken anew: %q, %v", gates(), err)
	}
	b.publishNext(t, slots{11: {Owner: "c1", Standby: "c3", Epoch: 1}})
	if gates() != "" || b.row(t, 11) != "c1 c3 - owner 1 active" {
		t.Errorf("after the table: %q, %s", gates(), b.row(t, 11))
	}
}
