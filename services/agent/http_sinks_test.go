package agent

import (
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/cellkit/cdc"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/services/agent/agentapi"
)

// Status has the relay's sinks; null, and not none, where there is no telling.
func TestStatusHasSinks(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, cdc.Migrations())
	pool, err := pg.Open(t.Context(), db.AgentDSN, "c1", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := &server{relay: cdc.NewRelay(cdc.Options{Zone: "c1", Pool: pool, DSN: db.AgentDSN})}
	if got := s.sinks(t.Context()); got == nil || len(got) > 0 {
		t.Errorf("sinks are %v, want none yet", got)
	}
	db.Plant(t, `INSERT INTO cdc.sinks (sink, state, reason, since, stored) VALUES
		('standby_c2', 'detached', 'its stream is full', '2026-01-02T03:04:05Z', NULL), ('search', 'attached', '', '2026-01-02T03:04:06Z', '1/2A')`)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	want := []agentapi.Sink{
		{Sink: "search", State: "attached", Since: at.Add(time.Second), Stored: "1/2A"},
		{Sink: "standby_c2", State: "detached", Reason: "its stream is full", Since: at},
	}
	if d := cmp.Diff(want, s.sinks(t.Context())); d != "" {
		t.Errorf("sinks (-want +got):\n%s", d)
	}
	pool.Close()
	if got := s.sinks(t.Context()); got != nil {
		t.Errorf("sinks are %v, and nobody can know", got)
	}
	if got := (&server{}).sinks(t.Context()); got != nil {
		t.Errorf("without a relay there are %v", got)
	}
}
