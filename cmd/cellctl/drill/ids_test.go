package drill

import (
	"strings"
	"testing"
	"time"

	"example.com/cellmart/cmd/cellctl/load"
	"example.com/cellmart/services/idgen/idgenapi"
)

func TestLedger(t *testing.T) {
	t.Parallel()
	j := ledger{}
	j.add(idgenapi.Order, leased{30, 40, "c"})
	j.add(idgenapi.Order, leased{10, 20, "a"})
	j.add(idgenapi.Order, leased{20, 30, "b"})
	j.add(idgenapi.Order, leased{20, 30, "b"}) // told twice, leased once
	j.add(idgenapi.User, leased{10, 20, "a"})  // another kind
	if got := j.overlaps(); got != nil {
		t.Errorf("overlaps %v of leases side by side", got)
	}
	for seq, want := range map[int64]bool{9: false, 10: true, 29: true, 39: true, 40: false} {
		if got := j.has(idgenapi.Order, seq); got != want {
			t.Errorf("has %d = %v", seq, got)
		}
	}
	j.merge(ledger{idgenapi.Order: {{20, 30, "b"}, {50, 60, "d"}}})
	if got := j.overlaps(); got != nil || len(j[idgenapi.Order]) != 4 {
		t.Errorf("merged %v, overlaps %v", j, got)
	}
	for _, l := range []leased{{39, 50, "x"}, {15, 16, "x"}, {1, 100, "x"}, {20, 30, "x"}} {
		bad := ledger{}
		bad.merge(j)
		bad.add(idgenapi.Order, l)
		if got := bad.overlaps(); len(got) == 0 || !strings.Contains(got[0], " of x") {
			t.Errorf("with %v the overlaps are %v", l, got)
		}
	}
}

func TestNobodyNoticed(t *testing.T) {
	t.Parallel()
	judge := func(change func(*load.Sample)) string {
		all, _ := ideal()
		for i := range all {
			all[i].OK, all[i].Status = true, 200
			change(&all[i])
		}
		r := &run{homes: []string{"c1", "c2", "c3", "c4"}, load: &load.Load{}, report: &Report{Figures: map[string]any{}}}
		r.nobodyNoticed(all, span{10 * time.Second, 12 * time.Second})
		return strings.Join(r.report.Failed, "\n")
	}
	if failed := judge(func(*load.Sample) {}); failed != "" {
		t.Errorf("the ideal fails: %s", failed)
	}
	one := func(x *load.Sample) { x.OK = x.At != 11*time.Second || x.Home != 1 }
	if failed := judge(one); !strings.Contains(failed, "1 of 1760 requests failed") {
		t.Errorf("one error: %q", failed)
	}
	if failed := judge(func(x *load.Sample) { x.Kind = load.Browse }); !strings.Contains(failed, "nothing was tried") {
		t.Errorf("nobody needed an ID: %q", failed)
	}
}
