package route_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"example.com/cellmart/platform/cellkit/env"
	"example.com/cellmart/platform/cellkit/route"
)

// TestAcks tells an agent's list over a day of its zone.
func TestAcks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := route.NewAcks()
		note := func(process string, version int64) {
			t.Helper()
			if err := a.Note(route.Ack{Process: process, Version: version}); err != nil {
				t.Fatal(err)
			}
		}
		want := func(when string, held ...route.Held) {
			t.Helper()
			if d := cmp.Diff(held, a.List()); d != "" {
				t.Errorf("%s (-want +got):\n%s", when, d)
			}
		}
		a.Hold(3)
		note("order", 3)
		note("user", 2)
		time.Sleep(2 * time.Second)
		want("one is behind from its first word on", route.Held{Process: "order", Version: 3, Behind: -1, Age: 2 * time.Second},
			route.Held{Process: "user", Version: 2, Behind: 2 * time.Second, Age: 2 * time.Second})
		if !a.Behind() {
			t.Error("nobody is pushed to")
		}
		note("user", 3)
		if a.Behind() {
			t.Error("somebody is pushed to for nothing")
		}
		a.Hold(4)
		time.Sleep(time.Second)
		note("order", 4)
		want("a push is out", route.Held{Process: "order", Version: 4, Behind: -1}, route.Held{Process: "user", Version: 3, Behind: time.Second, Age: time.Second})
		a.Hold(5)
		a.Hold(2) // never back
		time.Sleep(14 * time.Second)
		note("order", 5)
		want("both ages grow", route.Held{Process: "order", Version: 5, Behind: -1}, route.Held{Process: "user", Version: 3, Behind: 15 * time.Second, Age: 15 * time.Second})
		if a.Behind() {
			t.Error("a silent process is pushed to for ever")
		}
		time.Sleep(9 * time.Minute)
		if got := a.List(); len(got) != 2 {
			t.Errorf("a silent process is forgotten too soon: %v", got)
		}
		time.Sleep(2 * time.Minute)
		note("gateway", 6) // newer than the agent's own: not behind
		want("the silent are forgotten", route.Held{Process: "gateway", Version: 6, Behind: -1})
		if err := a.Note(route.Ack{Process: "gateway", Gone: true}); err != nil || len(a.List()) != 0 {
			t.Errorf("who says goodbye stays: %v, %v", a.List(), err)
		}
		if a.Listening() != 11*time.Minute+17*time.Second {
			t.Errorf("Listening = %s", a.Listening())
		}
	})
}

// TestGather: a report waits until the last process has the table, and not longer
// than the limit for one that never will.
func TestGather(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := route.NewAcks()
		has := func(process string, version int64) {
			if err := a.Note(route.Ack{Process: process, Version: version}); err != nil {
				t.Error(err)
			}
		}
		gather := func() time.Duration {
			begun := time.Now()
			<-a.Changed()
			a.Gather(t.Context(), 100*time.Millisecond)
			return time.Since(begun)
		}
		has("order", 1)
		has("user", 1)
		if took := gather(); took != 0 {
			t.Errorf("nobody is behind, and it takes %s", took)
		}
		go func() {
			a.Hold(2)
			time.Sleep(20 * time.Millisecond)
			has("order", 2)
			time.Sleep(30 * time.Millisecond)
			has("user", 2)
		}()
		if took := gather(); took != 50*time.Millisecond || a.Behind() {
			t.Errorf("the last word comes after 50 ms, and it takes %s (behind: %v)", took, a.Behind())
		}
		go func() {
			a.Hold(3)
			has("order", 3)
		}()
		if took := gather(); took != 100*time.Millisecond {
			t.Errorf("one is behind for ever, and it takes %s", took)
		}
		go func() {
			time.Sleep(time.Second)
			has("user", 3)
		}()
		if took := gather(); took != time.Second {
			t.Errorf("a straggler's word after a second is reported after %s", took)
		}
	})
}

func TestAcksRefuseNonsense(t *testing.T) {
	t.Parallel()
	a := route.NewAcks()
	for _, bad := range []string{"", "x", `{}`, `{"process":"a","version":-1}`, `{"process":"a\u001b[1m"}`, `{"process":"a b"}`, `{"process":"` + strings.Repeat("a", 101) + `"}`} {
		if err := a.Parse([]byte(bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	for i := range 1001 {
		if err := a.Note(route.Ack{Process: fmt.Sprint(i)}); (err == nil) != (i < 1000) {
			t.Fatalf("process %d: %v", i, err)
		}
	}
	if err := a.Note(route.Ack{Process: "5", Version: 2}); err != nil {
		t.Errorf("a known one in a full list: %v", err)
	}
}

// TestFollowerAcknowledges: at its start, at each change, when NATS was away, and
// goodbye at the end; the agent hears the same with each question.
func TestFollowerAcknowledges(t *testing.T) {
	t.Parallel()
	s := startNATS(t, -1)
	nc, err := nats.Connect(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	var mu sync.Mutex
	var last route.Ack
	if _, err := nc.Subscribe(route.SubjectAck, func(m *nats.Msg) {
		mu.Lock()
		defer mu.Unlock()
		if err := json.Unmarshal(m.Data, &last); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	heard := func(want route.Ack) {
		t.Helper()
		waitFor(t, fmt.Sprintf("%+v", want), func() bool {
			mu.Lock()
			defer mu.Unlock()
			return last == want
		})
	}
	a := newAgent(t)
	t.Run("follow", func(t *testing.T) {
		f, h := run(t, route.Options{AgentURL: a.URL, NATSURL: s.ClientURL(), Key: public(key(1)), Process: "order@h:1", Cells: []string{"c1"}, Interval: time.Hour})
		heard(route.Ack{Process: "order@h:1"})
		a.serve(signed(t, key(1), 4))
		f.Refresh()
		heard(route.Ack{Process: "order@h:1", Version: 4})
		waitVersion(t, h, 4)
		if p := a.process.Load(); p == nil || *p != "order@h:1" {
			t.Errorf("the agent isn't told who asks: %v", p)
		}
	})
	heard(route.Ack{Process: "order@h:1", Version: 4, Gone: true})
}

func TestProcessName(t *testing.T) {
	t.Parallel()
	name := func(internal string) string {
		vars := map[string]string{"CATALOG_WRITER_INTERNAL_ADDR": internal}
		return route.ReadOptions(env.NewReader("CATALOG_WRITER", func(n string) string { return vars[n] })).Process
	}
	if got := name("10.1.2.3:9100"); got != "catalog-writer@10.1.2.3:9100" {
		t.Errorf("an address: %s", got)
	}
	for _, internal := range []string{"127.0.0.1:9100", ":9100", "0.0.0.0:9100", "localhost:9100"} {
		if got := name(internal); !strings.HasPrefix(got, "catalog-writer@") || !strings.HasSuffix(got, ":9100") || strings.Contains(got, "127.0") {
			t.Errorf("%s: %s", internal, got)
		}
	}
	if got := name(""); got == name(":9100") || !strings.HasPrefix(got, "catalog-writer@") {
		t.Errorf("no address: %s", got)
	}
}
