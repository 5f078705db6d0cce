package lease

import "example.com/cellmart/platform/cellkit/explore"

// What is found when a rule is off.
const (
	twoOwners = "two writers"
	tailLost  = "what others acted on is lost"
	overtaken = "the target owns the slot before it has all of it"
	wentBack  = "a database that went back has a lease"
)

// limit is on the states of one run: far above what is there, far below what hurts.
const limit = 1_000_000

// world is a configuration, and how to look at it.
type world struct {
	name  string
	bound string // what may happen
	look  func(off Rule, wants string) (explore.Found, error)
}

func (w world) run(off Rule, wants string) explore.Run {
	return explore.Run{World: w.name, Bound: w.bound, Rule: explore.Rule(rules()[off]), Wants: wants,
		Look: func() (explore.Found, error) { return w.look(off, wants) }}
}

func worlds() []world {
	return []world{
		voters("2 voters", "3 rounds, 2 tables", voterWorld{n: 2, rounds: 3, tables: 2}),
		voters("3 voters", "2 rounds, 3 tables", voterWorld{n: 3, rounds: 2, tables: 3}),
		voters("4 voters", "2 rounds, 2 tables", voterWorld{n: 4, rounds: 2, tables: 2}),
		restored("a restore, 3 voters", 3),
		restored("a restore, 4 voters", 4),
		restored("a restore, 5 voters", 5),
		handovers("a hand-over", 1),
		handovers("a hand-over, both cells die", 2),
	}
}

func voters(name, bound string, w voterWorld) world {
	return world{name: name, bound: bound, look: func(off Rule, wants string) (explore.Found, error) {
		w := w // runs of one world go side by side
		w.off = off
		return explore.States(&w, wants, limit)
	}}
}

func restored(name string, n int) world {
	return world{name: name, bound: "3 rounds, 3 starts", look: func(off Rule, wants string) (explore.Found, error) {
		return explore.States(&restoreWorld{off: off, n: n}, wants, limit)
	}}
}

func handovers(name string, deaths uint8) world {
	return world{name: name, bound: "6 tables", look: func(off Rule, wants string) (explore.Found, error) {
		return explore.States(&handoverWorld{off: off, deaths: deaths}, wants, limit)
	}}
}

// Runs are the worlds with all rules on, and then every rule switched off in one of
// them.
func Runs() []explore.Run {
	var out []explore.Run
	worlds := worlds()
	for _, w := range worlds {
		out = append(out, w.run(None, ""))
	}
	for _, r := range []struct {
		rule         Rule
		world, wants string
	}{
		{KeepMeetsFence, "4 voters", twoOwners},
		{KeepMeetsFence, "4 voters", tailLost},
		{PromiseWhenOld, "4 voters", twoOwners},
		{RestartWaits, "4 voters", twoOwners},
		{PromiseStored, "4 voters", twoOwners},
		{PromiseOutlasts, "4 voters", twoOwners},
		{SwapFromBase, "3 voters", twoOwners},
		{GivingUpPublishes, "4 voters", explore.Stuck},
		{MarkFirst, "4 voters", tailLost},
		{MarkedStays, "4 voters", tailLost},
		{LiftWhenPassed, "2 voters", tailLost},
		{MarkStored, "2 voters", tailLost},
		{OnlyGrantsCount, "4 voters", tailLost},
		{HighestCounter, "2 voters", tailLost},
		{FirstRoundAsks, "a restore, 4 voters", wentBack},
		{FirstRoundAsksMany, "a restore, 4 voters", wentBack},
		{SmallAsksAll, "a restore, 3 voters", wentBack},
		{CounterUnchanged, "a restore, 4 voters", wentBack},
		{ReturnedForGood, "a restore, 4 voters", wentBack},
		{TargetIsStandby, "a hand-over", twoOwners},
		{TargetHoldsTable, "a hand-over", ""},
		{OneJob, "a hand-over", twoOwners},
		{EpochsGoUp, "a hand-over", twoOwners},
		{EqualKeepsOwner, "a hand-over", twoOwners},
		{AskFirst, "a hand-over", explore.Stuck},
		{GiverSkipsEpoch, "a hand-over", explore.Stuck},
		{SwitchFollows, "a hand-over", overtaken},
	} {
		for _, w := range worlds {
			if w.name == r.world {
				out = append(out, w.run(r.rule, r.wants))
			}
		}
	}
	return out
}
