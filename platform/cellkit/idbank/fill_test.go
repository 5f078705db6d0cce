package idbank

import (
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/id"
)

// The clock that grants go by can be set wrong by an operator; how old a report is
// has nothing to do with it.
func TestAgesAreNotTheClocks(t *testing.T) {
	t.Parallel()
	offset := time.Duration(0)
	b := Open(Options{Cell: "c1", Clock: func() time.Time { return time.Now().Add(offset) }})
	b.Heard(id.Report{Process: "c1/order", Kinds: []id.Stat{{Kind: "order", Rate: 7}}})
	for _, offset = range []time.Duration{-time.Hour, 2 * time.Hour} {
		if age := b.Figures(t.Context()).Processes[0].AgeMS; age < 0 || age > 60_000 {
			t.Errorf("the clock is %v off: a report of just now is %d ms old", offset, age)
		}
		if r := b.rates()["order"]; r != 7 {
			t.Errorf("the clock is %v off: the cell uses %v orders a second, want 7", offset, r)
		}
	}
}
