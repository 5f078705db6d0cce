package bank

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/platform/routing"
)

// pair is c1, which owns slots 1 to 3, and c2, which stands by for them.
func pair(t *testing.T) (Promoter, Place, map[string]*pgtest.DB) {
	t.Helper()
	c1, c2 := pgtest.NewCell(t, "c1", 1), pgtest.NewCell(t, "c2", 2)
	c2.StandBy(t, 1, 3, "c1")
	c2.Plant(t, "UPDATE cell.slots SET epoch = 1 WHERE slot BETWEEN 1 AND 3; INSERT INTO cell.standby_slots (slot, source, epoch, state) VALUES (1, 'c1', 1, 'in_sync'), (2, 'c1', 1, 'in_sync'), (3, 'c1', 1, 'in_sync')")
	c1.Plant(t, "UPDATE cell.slots SET standby = 'c2' WHERE slot BETWEEN 1 AND 3")
	at := Place{Owner: "c1", Standby: "c2", Slots: []routing.Slot{1, 2, 3}, Epochs: []routing.Epoch{1, 1, 1}}
	return Promoter{Databases: map[string]string{"c1": c1.SuperDSN, "c2": c2.SuperDSN}}, at, map[string]*pgtest.DB{"c1": c1, "c2": c2}
}

// enter says whether slot 2 takes a writer.
func enter(t *testing.T, db *pgtest.DB) error {
	return pgx.BeginFunc(t.Context(), db.App, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SELECT cell.enter(2, 1)")
		return err
	})
}

func TestFence(t *testing.T) {
	t.Parallel()
	p, at, dbs := pair(t)
	if err := enter(t, dbs["c1"]); err != nil {
		t.Fatal(err)
	}
	if err := p.Fence(t.Context(), at); err != nil {
		t.Fatal(err)
	}
	if err := enter(t, dbs["c1"]); err == nil || !strings.Contains(err.Error(), "draining") {
		t.Errorf("a fenced slot takes a writer: %v", err)
	}
	if err := p.Fence(t.Context(), at); err == nil {
		t.Error("fenced twice")
	}
	if err := p.Reopen(t.Context(), at); err != nil {
		t.Fatal(err)
	}
	if err := enter(t, dbs["c1"]); err != nil {
		t.Errorf("reopened: %v", err)
	}
	at.Epochs[1] = 7
	if err := p.Fence(t.Context(), at); err == nil {
		t.Error("fenced at another epoch")
	}
	if err := enter(t, dbs["c1"]); err != nil {
		t.Errorf("a fence that failed stands: %v", err)
	}
}

// What isn't covered isn't promoted, each way in which it can be so; the fence goes
// again. (The table is never asked for: there is no control here.)
func TestUncoveredIsRefused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ cell, sql, says string }{
		"copying":       {"c2", "UPDATE cell.standby_slots SET state = 'copying', reason = 'a test' WHERE slot = 2", "slot 2: a test copying"},
		"another epoch": {"c2", "UPDATE cell.standby_slots SET epoch = 9 WHERE slot = 3", "slot 3: "},
		"not kept":      {"c2", "UPDATE cell.slots SET role = 'none' WHERE slot = 1", "slot 1: not kept"},
		"marked":        {"c1", "INSERT INTO cell.uncovered (slot, epoch, sent) VALUES (2, 1, '0/1')", "slot 2: its owner sent on uncovered, and nobody was told"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, at, dbs := pair(t)
			dbs[tc.cell].Plant(t, tc.sql)
			err := p.Promote(t.Context(), at, "test")
			if !errors.Is(err, ErrUncovered) || !errors.Is(err, errNothing) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("Promote = %v, want %q", err, tc.says)
			}
			if err := enter(t, dbs["c1"]); err != nil {
				t.Errorf("the fence is left: %v", err)
			}
		})
	}
}

// An old mark is of an owner that was: it says nothing of this one.
func TestOldMark(t *testing.T) {
	t.Parallel()
	p, at, dbs := pair(t)
	dbs["c1"].Plant(t, "INSERT INTO cell.uncovered (slot, epoch, sent) VALUES (2, 0, '0/1')")
	if err := p.Unmarked(t.Context(), at); err != nil {
		t.Error(err)
	}
}

func TestPlaces(t *testing.T) {
	t.Parallel()
	p, _, dbs := pair(t)
	dbs["c1"].Plant(t, "UPDATE cell.slots SET state = 'draining' WHERE slot = 3; UPDATE cell.slots SET epoch = 5 WHERE slot = 2")
	dbs["c2"].Plant(t, "UPDATE cell.slots SET standby = 'c1' WHERE slot = 9")
	got, err := p.Places(t.Context(), []routing.Slot{2, 1, 3, 4, 9})
	if err != nil || len(got) != 2 || got[0].String() != "2 slots of c1, standby c2" || got[1].String() != "1 slots of c2, standby c1" || got[0].Epochs[1] != 5 {
		t.Errorf("Places = %+v, %v", got, err)
	}
}
