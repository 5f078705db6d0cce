package lease

// Rule is one of the protocol's rules; a run may switch one off.
type Rule uint8

// The rules, None is no rule. What they say: see rules.
const (
	None Rule = iota

	// Leases, promises and marks.
	KeepMeetsFence
	PromiseWhenOld
	RestartWaits
	PromiseStored
	PromiseOutlasts
	SwapFromBase
	GivingUpPublishes
	MarkFirst
	MarkedStays
	LiftWhenPassed
	MarkStored
	OnlyGrantsCount
	HighestCounter

	// A database that went back.
	FirstRoundAsks
	FirstRoundAsksMany
	SmallAsksAll
	CounterUnchanged
	ReturnedForGood

	// A slot that is given.
	TargetIsStandby
	TargetHoldsTable
	OneJob
	EpochsGoUp
	EqualKeepsOwner
	AskFirst
	GiverSkipsEpoch
	SwitchFollows

	last
)

// rule is an explore.Rule.
type rule struct{ Place, Name, Off string }

func rules() [last]rule {
	return [...]rule{
		KeepMeetsFence:    {"P2.2", "K + F > N", "F is N - K"},
		PromiseWhenOld:    {"P2.4", "a promise when the grant is L old", "at once"},
		RestartWaits:      {"P2.4", "a voter that restarts waits L", "it forgets its grant"},
		PromiseStored:     {"P2.4", "a promise is on disk", "a restart forgets it"},
		PromiseOutlasts:   {"P2.4", "until the cell asks with a newer table", "a promise ends when there is any newer table"},
		SwapFromBase:      {"P2.4", "failover publishes v+1 over v", "over whatever is the newest"},
		GivingUpPublishes: {"P2.4", "giving up publishes too", "it doesn't, so promises never end"},
		MarkFirst:         {"P4.3", "marked, then sent on", "after 2 s the owner sends on without a mark"},
		MarkedStays:       {"P4.3", "a marked slot isn't failed over", "it is"},
		LiftWhenPassed:    {"P4.3", "a mark stays until all is passed", "a round may leave it out before"},
		MarkStored:        {"P4.3", "a mark is on disk before the grant", "a restart forgets it"},
		OnlyGrantsCount:   {"P4.3", "only grants count", "a refusal counts as having the mark"},
		HighestCounter:    {"P4.3", "the highest counter's marks", "those that came last"},

		FirstRoundAsks:     {"P2.3", "the first round asks what voters have", "it is a round like any"},
		FirstRoundAsksMany: {"P2.3", "F voters have to answer it", "K do"},
		SmallAsksAll:       {"P2.3", "with 3 voters all of them", "2 do, as P2.3 has it, so that one may be away"},
		CounterUnchanged:   {"P2.3", "with the counter as it was found", "each start raises it before it asks"},
		ReturnedForGood:    {"P2.3", "a new incarnation after the return only", "at once"},

		TargetIsStandby:  {"P6", "the table names the target first", "the slot is given to whoever is in sync"},
		TargetHoldsTable: {"P6", "both hold that table", "it's enough that it is published"},
		OneJob:           {"P6", "nothing else touches the slot", "another job changes its standby meanwhile"},
		EpochsGoUp:       {"P6", "a table counts above the local epoch", "any newer table counts"},
		EqualKeepsOwner:  {"P6", "an equal epoch changes no owner", "it does, and given doesn't count as one more"},
		AskFirst:         {"P6", "a failover asks for newer rows first", "it goes by the table"},
		GiverSkipsEpoch:  {"P6", "the giver takes back at epoch + 2", "at epoch + 1"},
		SwitchFollows:    {"P6", "the table follows the hand-over", "the switch is published when the owner has given"},
	}
}
