package cdc_test

import (
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/cdc"
)

// Who waits for standbys to pass a place in the WAL doesn't wait for the next
// heartbeat, also where nothing else is to be applied. Other sinks hear nothing of it,
// nor do standbys that it doesn't name.
func TestHoldReachesStandbysAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.standby(7, "c2", "")
	w.standby(8, "c3", "")
	w.run("relay", cdc.NewRelay(cdc.Options{
		Zone: w.db.Cell, Pool: w.pool, DSN: w.db.AgentDSN, NATSURL: w.nats.URL, Sinks: []cdc.Sink{{Name: "test", Tables: shopTables}}, Log: w.log,
		Beat: time.Hour,
	}).Run)
	w.sink()
	k := w.taker("c2")
	w.add(1, 1)
	w.equal()
	k.holds("the row", func() bool { return k.pos.State == cdc.Live && k.has(7, 1) })
	other := w.taker("c3")
	other.holds("its start", func() bool { return true })
	for _, names := range []string{"c2", "c4,c2", "c2,c22"} {
		var text string
		if err := w.pool.QueryRow(t.Context(), "SELECT pg_logical_emit_message(true, 'cellmart.hold', $1)::text", names).Scan(&text); err != nil {
			t.Fatal(err)
		}
		var at cdc.LSN
		if err := at.UnmarshalText([]byte(text)); err != nil {
			t.Fatal(err)
		}
		k.holds("a place behind "+text, func() bool { return k.pos.LSN >= at })
		w.mu.Lock()
		if w.pos.LSN >= at {
			t.Errorf("the other sink is at %s, behind %s", w.pos.LSN, at)
		}
		w.mu.Unlock()
		other.mu.Lock()
		if other.pos.LSN >= at {
			t.Errorf("c3 is at %s, behind %s, which names %s", other.pos.LSN, at, names)
		}
		other.mu.Unlock()
	}
}
