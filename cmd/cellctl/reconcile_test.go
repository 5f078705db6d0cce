package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/cellkit/reconcile"
	"example.com/cellmart/services/agent/agentapi"
)

func TestOutOfBalance(t *testing.T) {
	t.Parallel()
	ms := func(n int64) *int64 { return &n }
	db := &agentapi.Database{}
	sound := []agentapi.LedgerLook{{ID: "I3", Checked: 9, AgeMS: 50_000}, {ID: "I4", Checked: 9, AgeMS: 50_000}}
	for _, tc := range []struct {
		name string
		s    agentapi.Status
		want []string
	}{
		{"no database", agentapi.Status{}, nil},
		{"sound", agentapi.Status{Database: db, Books: sound, Reconciled: []agentapi.Reconciled{{To: "c1", RecentAgeMS: ms(900)}}}, nil},
		{"unknown isn't sound", agentapi.Status{Database: db, Reconciled: []agentapi.Reconciled{{To: "c2", Error: "the link is down"}}},
			[]string{"transfers to c2 aren't compared yet the link is down", "nobody has looked at the ledger yet"}},
		{"wrong, or old", agentapi.Status{Database: db, Books: []agentapi.LedgerLook{{ID: "I3", Violations: 2, AgeMS: 700_000}},
			Reconciled: []agentapi.Reconciled{{To: "c2", RecentAgeMS: ms(90_000), Different: 3, Error: "no"}}}, []string{
			"3 transfers to c2 whose two sides don't match (1m30s ago): cellctl reconcile names them", "transfers to c2 were compared 1m30s ago: no",
			"2 violations of I3 (11m40s ago): cellctl invariants names them", "the last look at I3 was 11m40s ago",
		}},
	} {
		if d := cmp.Diff(tc.want, outOfBalance(&tc.s)); d != "" {
			t.Errorf("%s (-want +got)\n%s", tc.name, d)
		}
	}
}

func TestPrintReconcile(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 4, 5, 0, 0, 0, time.UTC)
	var out bytes.Buffer
	printReconcile(&out, reconcile.Report{
		Transfers: 12, Open: 1, ElapsedMS: 40, NotLooked: 2,
		Differences: []reconcile.Difference{{Kind: reconcile.Twice, ID: 7, From: "c1", To: "c2", Hour: at, Text: "transfer 7 is both CREDITED and REVERSED"}},
		Differing:   []reconcile.PairHour{{From: "c1", To: "c2", Hour: reconcile.Hour{Hour: at, End: "SETTLED", Currency: "CNY", Payer: reconcile.Sums{N: 3, Sum: "30"}, Payee: reconcile.Sums{N: 4, Sum: "35"}}}},
		NotCompared: []reconcile.NotCompared{{From: "c3", Reason: "away"}, {From: "c1", To: "c4", Reason: "busy"}},
		Summary:     []reconcile.Line{{From: "c1", To: "c2", Since: at, Hours: 2, Transfers: 12, Open: 1, Different: 1, MS: 9}},
	})
	want := []string{
		"hour     2026-03-04 05h UTC, c1 to c2, SETTLED CNY: 3 of 30 at the payers', 4 of 35 at the payees'",
		"twice    c1 to c2, begun in 2026-03-04 05h UTC: transfer 7 is both CREDITED and REVERSED",
		"and 2 more differ in their digests: too many to be looked at one by one",
		"NOT COMPARED c3: away",
		"NOT COMPARED c1 to c4: busy",
		"c1 to c2: 12 transfers in 2 hours from 2026-03-04 05h UTC on, 1 in flight, 1 differences, 9 ms",
		"NOT EQUAL, or not all of it known: 12 transfers compared in 40 ms, 1 in flight, 1 differences",
		"",
	}
	if d := cmp.Diff(want, strings.Split(out.String(), "\n")); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func TestReconcileRefusesBadInput(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"reconcile", "x"}, {"reconcile", "--since", "soon"}, {"reconcile", "--since", "-1h"}} {
		var out, bad bytes.Buffer
		if code := run(t.Context(), args, &out, &bad); code != 2 || strings.Count(bad.String(), "\n") != 1 {
			t.Errorf("%v = %d, %s", args, code, bad.String())
		}
	}
}
