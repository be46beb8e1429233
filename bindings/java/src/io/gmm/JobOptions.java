/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** Which rank of which job this process is. Each method changes this object and returns it. */
public final class JobOptions {
    private String name = "job";
    private int rank;
    private int ranks = 1;
    private long timeoutMillis;

    /** 1 to 63 letters, digits, '.', '-' and '_'. No other job of the exchange had it. Default: "job". */
    public JobOptions name(String value) {
        name = value;
        return this;
    }

    /** This process, from 0 on, and how many there are. */
    public JobOptions rank(int value, int ofRanks) {
        rank = value;
        ranks = ofRanks;
        return this;
    }

    /** Milliseconds of each operation, with the copies of the slowest rank; 0 means 60,000. */
    public JobOptions timeoutMillis(long value) {
        timeoutMillis = Text.checkSize("the timeout", value);
        return this;
    }

    /** `exchange` is the ExchangeCall that C gets. */
    void fill(gmm_job_desc desc, long exchange) {
        desc.set_name(name);
        desc.setRank(rank);
        desc.setRanks(ranks);
        desc.setTimeout_ms(timeoutMillis);
        desc.set_exchange(exchange);
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
