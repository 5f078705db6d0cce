// Package explore looks at every state of a small model of a protocol. No binary
// has it: models are held against the protocols by tests.
//
//	World: Start, Moves, Broken, Rests      States: breadth first, every state once
//	  |                                       |
//	  | all rules on -----------------------> nothing is broken, from everywhere an end can be reached
//	  | one rule off -----------------------> the violation it is there for, and a shortest way to it
//
// Moves that may never happen (a fault, a wish) are free. A state from which the
// others lead to no end is Stuck: so a message that is never sent again is found
// as well as money that is made. Models: platform/cellkit/transfer/model (money, stock,
// claims) and lease, beside this.
//
// What can go wrong:
//
//	the world has more states than the limit  an error: the model has to be smaller
//	a rule that is off isn't missed           Check fails: the world or the rule says nothing
//	the counts change                         Check fails and shows the new table: look why, then -update
package explore
