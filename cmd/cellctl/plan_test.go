package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"example.com/cellmart/cmd/cellctl/plan"
	"example.com/cellmart/services/agent/agentapi"
)

// counting is a fleet whose agents answer so; nil is an agent that has heard of
// no counts.
func counting(t *testing.T, counts map[string]*agentapi.Requests) *fleet {
	f := &fleet{cells: map[string]*agentapi.Client{}}
	for name, r := range counts {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if err := json.NewEncoder(w).Encode(agentapi.Status{Cell: name, Requests: r}); err != nil {
				t.Error(err)
			}
		}))
		t.Cleanup(s.Close)
		f.cells[name] = &agentapi.Client{BaseURL: s.URL}
		f.names = append(f.names, name)
	}
	return f
}

func TestCounted(t *testing.T) {
	t.Parallel()
	f := counting(t, map[string]*agentapi.Requests{
		"c1": {Local: 60, Forwarded: 20, Messaged: 5, AgeMS: 900}, "c2": {Local: 10, Forwarded: 4, Messaged: 1, AgeMS: 1800},
	})
	m, err := f.counted(t.Context())
	if want := (plan.Measured{Cells: 2, Local: 70, Forwarded: 24, Messaged: 6, AgeMS: 1800}); err != nil || *m != want || m.ClosedLoop() != 0.7 {
		t.Errorf("counted = %+v, %v, want %+v", m, err, want)
	}
	f = counting(t, map[string]*agentapi.Requests{"c1": {Local: 1}, "c2": nil})
	if m, err := f.counted(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "c2: ") {
		t.Errorf("c2 has heard nothing: %+v, %v", m, err)
	}
	f = counting(t, map[string]*agentapi.Requests{"c1": {Local: 1}, "c2": {Local: 1}})
	f.cells["c2"].BaseURL = "http://127.0.0.1:1" // nobody listens there
	if m, err := f.counted(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "c2: ") {
		t.Errorf("c2 is silent: %+v, %v", m, err)
	}
}
