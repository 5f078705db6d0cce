// Package e2e runs whole cells as a user does (deploy/local) and drives them
// through the gateways, the edge and the console only, under load and faults. Each test ends
// with the invariants of all cells. Build tag e2e; scripts/test runs it.
//
//	main_test.go        one demo for the package, started and ended once
//	shop_test.go        a shopper: register, deposit, buy, pay a friend
//	forms_test.go       the same in the shop's pages, form by form, and how long they take
//	browser_test.go     the same in a headless Chromium (chrome_test.go), and every page
//	load_test.go        a bounded background load that counts every answer
//	chrome_test.go      somebody at a headless Chromium
//	..._test.go         one question per file
//
// CELLMART_LONG=1 makes outages last 60 s instead of 20.
package e2e
