package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.com/cellmart/services/agent/agentapi"
)

func TestTransferOnBadInput(t *testing.T) {
	t.Parallel()
	root := t.TempDir() // no demo here
	for _, args := range []string{
		"transfer x", "transfer 1 2", "transfer --retry", "transfer 1 --retry --cancel", "transfer 1 --parked", "transfer --parked --cancel", "transfer --reason why",
		"transfer 1 --reason why", "transfer 1 --cancel --wait soon", "transfer 1 --cancel --reason " + strings.Repeat("x", 201), "transfer", "transfer 1",
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), append(strings.Fields(args), "--root", root), &out, &errs)
		if code != 2 || strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("cellctl %s = %d, %q; want 2 and one line", args, code, errs.String())
		}
	}
}

// Who is asked for what: the payer's cell to cancel, the payee's to reverse, and to
// retry whoever has something open or parked.
func TestPlanOfAJob(t *testing.T) {
	t.Parallel()
	open := agentapi.Transfer{Cell: "c1", Source: &agentapi.Side{Slot: 7, State: "FROZEN", Amount: 5, Currency: "CNY"}}
	ended := agentapi.Transfer{Cell: "c1", Source: &agentapi.Side{Slot: 7, State: "SETTLED"}}
	dest := agentapi.Transfer{Cell: "c2", Dest: &agentapi.Side{Slot: 9000, State: "CREDITED", Amount: 5, Currency: "CNY", From: 1, To: 2}}
	parked := []agentapi.ParkedTransfer{{Cell: "c2", Slot: 9000, Transfer: "42", Kind: "transfer.credit", Reason: "r"}, {Cell: "c1", Slot: 7, Transfer: "42", Kind: "transfer.answer"},
		{Cell: "c3", Slot: 1, Transfer: "43"}}
	for _, tc := range []struct {
		what   string
		sides  []agentapi.Transfer
		parked []agentapi.ParkedTransfer
		want   string
	}{
		{agentapi.Cancel, []agentapi.Transfer{open, dest}, nil, "c1 7"},
		{agentapi.Cancel, []agentapi.Transfer{dest}, nil, ""},
		{agentapi.Reverse, []agentapi.Transfer{ended, dest}, nil, "c2 9000"},
		{agentapi.Reverse, []agentapi.Transfer{ended}, nil, ""},
		{agentapi.Retry, []agentapi.Transfer{open, dest}, nil, "c1 7"},
		{agentapi.Retry, []agentapi.Transfer{ended, dest}, nil, ""},
		{agentapi.Retry, []agentapi.Transfer{open, dest}, parked, "c1 7, c2 9000"},
		{agentapi.Retry, []agentapi.Transfer{ended}, parked[:1], "c2 9000"},
	} {
		todo, err := agentapi.PlanJobs("42", tc.sides, tc.parked, agentapi.TransferJob{What: tc.what, Reason: "why"})
		var got []string
		for _, p := range todo {
			if p.Plan == "" || p.Transfer != 42 || p.What != tc.what || p.Reason != "why" {
				t.Errorf("%+v", p)
			}
			got = append(got, p.Cell+" "+p.Slot.String())
		}
		if strings.Join(got, ", ") != tc.want || err != nil {
			t.Errorf("%s: %v, %v, want %s", tc.what, got, err, tc.want)
		}
	}
}

// A job is kept once and asked about until it has ended; one that goes on is no
// error, and an agent that is away for a moment neither.
func TestJobIsAwaited(t *testing.T) {
	t.Parallel()
	var asks atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		j := agentapi.TransferJob{ID: "j", Transfer: 1, State: agentapi.JobOpen}
		switch n := asks.Add(1); {
		case n == 2:
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		case n > 2:
			j.State, j.Detail = agentapi.JobDone, "so"
		}
		_ = json.NewEncoder(w).Encode(j)
	}))
	t.Cleanup(srv.Close)
	a := &agentapi.Client{BaseURL: srv.URL}
	if j, err := await(t.Context(), a, agentapi.TransferJob{ID: "j", Transfer: 1}, 0); err != nil || j.State != agentapi.JobOpen {
		t.Errorf("without waiting: %+v, %v", j, err)
	}
	asks.Store(0)
	if j, err := await(context.WithoutCancel(t.Context()), a, agentapi.TransferJob{ID: "j", Transfer: 1}, time.Minute); err != nil || j.State != agentapi.JobDone || j.Detail != "so" {
		t.Errorf("%+v, %v", j, err)
	}
	var out bytes.Buffer
	printStuck(&out, []agentapi.StuckTransfer{{ID: 5, Cell: "c1", Kind: "refund", State: "FROZEN", Attempts: 3, AgeMS: 61_000, Answer: json.RawMessage(`{"verdict":"CREDITED"}`), Parked: "a conflict"}, {ID: 6}})
	got := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{"5 c1 refund", "1m1s 3 {\"verdict\":\"CREDITED\"}, parked: a conflict", "none"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %s", want, got)
		}
	}
}
