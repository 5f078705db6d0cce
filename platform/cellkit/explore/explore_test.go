package explore

import (
	"slices"
	"testing"
)

// steps is a world that can be seen at a glance: a number that grows by 1 or 2, up to
// most. From trap on it only grows by wishes.
type steps struct{ bad, most, trap int }

func (w steps) Start() int { return 0 }

func (w steps) Moves(s int, to func(who, what string, next int, free bool)) {
	for _, by := range []int{0, 1, 2} {
		if s+by <= w.most {
			to("n", [...]string{"stays", "one", "two"}[by], s+by, w.trap > 0 && s >= w.trap)
		}
	}
}

func (w steps) Broken(s int) string {
	if s == w.bad {
		return "bad"
	}
	return ""
}

func (w steps) Rests(s int) bool { return s == w.most }

func TestStatesFindsTheShortestWay(t *testing.T) {
	t.Parallel()
	f, err := States(steps{bad: 5, most: 9}, "", 100)
	want := []string{"n: one", "n: two", "n: two"}
	if err != nil || f.Broken != "bad" || f.Depth != 3 || !slices.Equal(f.Trace, want) {
		t.Errorf("States = %+v, %v, want the way %v", f, err, want)
	}
	if f, err = States(steps{bad: 5, most: 9}, "worse", 100); err != nil || f.Broken != "" || f.States != 10 || f.Moves != 17 {
		t.Errorf("looking for something else: %+v, %v, want nothing in 10 states and 17 moves", f, err)
	}
	if _, err := States(steps{bad: -1, most: 1000}, "", 100); err == nil {
		t.Error("1000 states and a limit of 100: no error")
	}
	if f, err = States(steps{bad: 0, most: 9}, "", 100); err != nil || f.Broken != "bad" || f.Depth != 0 {
		t.Errorf("the first state is bad: %+v, %v", f, err)
	}
}

func TestStatesFindsWhatIsStuck(t *testing.T) {
	t.Parallel()
	f, err := States(steps{bad: -1, most: 9, trap: 8}, "", 100)
	if err != nil || f.Broken != Stuck || f.Depth != 4 || f.States != 10 { // 7 + 2 is a way on, 8 has none
		t.Errorf("States = %+v, %v, want stuck at 8 after 4 moves", f, err)
	}
	if f, err = States(steps{bad: -1, most: 9}, "", 100); err != nil || f.Broken != "" {
		t.Errorf("without a trap: %+v, %v", f, err)
	}
}
