/* SPDX-License-Identifier: Apache-2.0 */
#include "self_test.h"

#include "recipe.h"

#include <stdarg.h>
#include <stdio.h>

void self_test_check(self_test_tally *tally, int passed, const char *format, ...)
{
    va_list arguments;
    if (passed) {
        tally->passed++;
        return;
    }
    tally->failed++;
    printf("FAILED: ");
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
}

int self_test(fwa_context *context)
{
    self_test_tally tally = {context, 0, 0};
    const fwa_preset *preset;
    lm_message message;
    for (int32_t i = 0; (preset = fwa_preset_get(i)) != NULL; i++) {
        const int known = recipe_find(preset->name, &message) != NULL;
        self_test_check(&tally, known, "%s has no recipe", preset->name);
        if (known)
            self_test_model(&tally, preset->name);
    }
    self_test_optimizer(&tally);
    self_test_runs(&tally);
    printf("%d passed, %d failed\n", tally.passed, tally.failed);
    return tally.failed;
}
