/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_TESTS_GPU_TEST_TILES_H
#define FWA_TESTS_GPU_TEST_TILES_H

enum {
    TEST_TURNED_LEFT = 1,  /* the left side lies in memory with rows along m */
    TEST_TURNED_RIGHT = 2, /* and the right with rows along n */
    TEST_CHAINED = 4,      /* the product is the left side of another */
    TEST_ROOM = 8,         /* and goes through shared memory, where it is doubled */
    TEST_ROWS = 16,        /* each element becomes the sum of its row */
    TEST_OWNERS = 32,      /* each is fetched from the lane that has it */
    TEST_ALL = 64
};

#endif
