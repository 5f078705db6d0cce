package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/idbank"
	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/services/agent/agentapi"
)

// idsAt is an agent's local API with a bank, and a process's client of it.
func idsAt(t *testing.T, bank *idbank.Bank) (*idbank.Client, *agentapi.Client) {
	t.Helper()
	s := &server{cell: "c1", operator: "secret", bank: bank}
	srv := httptest.NewServer(s.local(web.Options{Service: "agent", Cell: "c1", Log: slog.New(slog.DiscardHandler)}))
	t.Cleanup(srv.Close)
	return idbank.NewClient(srv.URL, "c1/order"), &agentapi.Client{BaseURL: srv.URL, OperatorKey: "secret"}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatal("not within a minute: " + what)
		case <-tick.C:
		}
	}
}

// A process with idgen away lives off the bank, then off the fallback, and all of
// it is shown.
func TestProcessLivesOffTheCell(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	database := idbank.Postgres{Pool: b.k.db.pool}
	bank := idbank.Open(idbank.Options{Cell: "c1", Database: database, Witness: idbank.File{Path: filepath.Join(t.TempDir(), "ids.json")}})
	client, operator := idsAt(t, bank)
	lo := id.SeqAt(time.Now())
	if err := database.Deposit(t.Context(), "order", idbank.Range{Lo: lo, Hi: lo + 1500}); err != nil {
		t.Fatal(err)
	}
	away := func(context.Context, string, int64, int64) (int64, int64, error) { return 0, 0, errs.ErrUnavailable }
	ids := id.NewClient(id.Options{Lease: away, Bank: client.Withdraw, Fallback: client.Fallback, Kinds: []string{"order"}})
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go ids.Run(ctx)                                  //nolint:errcheck // ends with the test
	go client.Tell(ctx, ids, obs.New("c1", "order")) //nolint:errcheck // ends with the test
	eventually(t, "both sources are in stock", func() bool {
		r := ids.Report("x")
		return r.Kinds[0].Banked > 0 && r.Fallback.Stock > 0
	})
	seen, fallback := map[id.ID]bool{}, 0
	for range 4000 {
		i, err := ids.Next("order", 9)
		if err != nil || seen[i] {
			t.Fatalf("%d, %v, seen %v", i, err, seen[i])
		}
		seen[i] = true
		if i.Fallback() {
			fallback++
			if p, _ := i.Parts(); p.Ordinal != 1 {
				t.Errorf("%d is of cell %d", i, p.Ordinal)
			}
		}
	}
	if fallback < 2000 {
		t.Errorf("%d of 4,000 out of the fallback", fallback)
	}
	var f id.CellFigures
	eventually(t, "the agent heard of it", func() bool {
		var err error
		f, err = operator.IDs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(f.Processes) == 1 && f.Processes[0].Kinds[0].Fallback == int64(fallback)
	})
	if f.Bank == nil || f.Bank.Counter < 2 || len(f.Bank.Machines) != 1 || f.Processes[0].Fallback.Machine != 8 || f.Processes[0].Kinds[0].BudgetUsed != nil {
		t.Errorf("%+v", f)
	}
	if _, err := (&agentapi.Client{BaseURL: operator.BaseURL}).IDs(t.Context()); !errors.Is(err, agentapi.ErrOperator) {
		t.Errorf("figures without the operator's key: %v", err)
	}
}

// The global zone has no stock of its own, says so, and shows its processes.
func TestZoneWithoutStock(t *testing.T) {
	t.Parallel()
	client, operator := idsAt(t, idbank.Open(idbank.Options{Cell: "global"}))
	if _, _, err := client.Withdraw(t.Context(), "sku", 0, 10); !errs.IsKind(err, errs.NotFound) {
		t.Errorf("withdraw: %v", err)
	}
	if _, err := client.Fallback(t.Context(), 10); !errs.IsKind(err, errs.NotFound) {
		t.Errorf("fallback: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	ids := id.NewClient(id.Options{Kinds: []string{"sku"}})
	go client.Tell(ctx, ids, obs.New("global", "catalog-writer")) //nolint:errcheck // ends with the test
	eventually(t, "the agent heard of it", func() bool {
		f, err := operator.IDs(t.Context())
		return err == nil && f.Bank == nil && f.BankError == "" && len(f.Processes) == 1 && f.Processes[0].Report.Fallback == nil
	})
}
